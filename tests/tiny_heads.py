"""Tiny heads with random weights, in each layout that is read."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import VOCABULARY, make_model_dir

HIDDEN, LAYERS, KNOWN = 64, 4, 96
Heads = tuple[int, int, int]
BLOCK: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


def known_tokens(seed: int = 0, known: int = KNOWN) -> torch.Tensor:
    """Which of the target's tokens a head with a vocabulary of its own knows, rising: [D]."""
    return torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))[:known].sort().values


def eagle_config(layout: str, heads: Heads = (4, 2, 16), **changes: Any) -> dict[str, Any]:
    """layout: "speculators", "safeailab" or "eagle1". heads: of queries, of keys, and their width."""
    sizes = dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim"), heads, strict=True))
    block = BLOCK | sizes
    if layout == "speculators":
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": block,
            "draft_vocab_size": KNOWN,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        }
    elif layout == "safeailab":
        config = {**block, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": KNOWN}
    else:
        config = {**block, "architectures": ["LlamaForCausalLM"]}
    return config | changes


def eagle_tensors(
    layout: str, heads: Heads = (4, 2, 16), *, seed: int = 0, scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """Random weights by the layout's keys."""
    generator = torch.Generator().manual_seed(seed)
    prefix = "midlayer." if layout == "safeailab" else "layers.0."
    query, key = heads[0] * heads[2], heads[1] * heads[2]
    inputs = HIDDEN if layout == "eagle1" else 2 * HIDDEN
    sizes = {
        f"{prefix}self_attn.q_proj.weight": (query, inputs),
        f"{prefix}self_attn.k_proj.weight": (key, inputs),
        f"{prefix}self_attn.v_proj.weight": (key, inputs),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, query),
        f"{prefix}mlp.gate_proj.weight": (96, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (96, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, 96),
        "fc.weight": (HIDDEN, (2 if layout == "eagle1" else 3) * HIDDEN),
    }
    norms = [f"{prefix}post_attention_layernorm.weight"]
    if layout == "eagle1":
        sizes["fc.bias"] = (HIDDEN,)
    else:
        norms += [f"{prefix}input_layernorm.weight", f"{prefix}hidden_norm.weight", "norm.weight"]
        sizes["lm_head.weight"] = (KNOWN, HIDDEN)
    tensors = {
        key: torch.randn(size, generator=generator) * scale * size[-1] ** -0.5 for key, size in sizes.items()
    }
    tensors |= {key: 1 + 0.2 * torch.randn(HIDDEN, generator=generator) for key in norms}
    if layout != "eagle1":
        known = known_tokens()
        tensors["d2t"] = known - torch.arange(KNOWN)
        tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, known, value=True)
    return tensors


def make_eagle_dir(
    path: Path,
    layout: str = "speculators",
    heads: Heads = (4, 2, 16),
    *,
    seed: int = 0,
    scale: float = 1.0,
    tensors: dict[str, torch.Tensor] | None = None,
    **changes: Any,
) -> Path:
    """Write a head. tensors: instead of random ones. changes: of its config; None takes a key out."""
    path.mkdir(parents=True, exist_ok=True)
    config = {
        key: value for key, value in eagle_config(layout, heads, **changes).items() if value is not None
    }
    (path / "config.json").write_text(json.dumps(config))
    found = eagle_tensors(layout, heads, seed=seed, scale=scale) if tensors is None else tensors
    if layout == "eagle1":  # as old tools wrote them
        torch.save(found, path / "pytorch_model.bin")
    else:
        save_file(found, path / "model.safetensors")
    return path


def make_knowing_head(path: Path, target: Path, *, known: int = VOCABULARY, shift: int = 0) -> Path:
    """A head that guesses right, for a target whose layers add nothing (`make_model_dir` with scale 0).

    Such a target's next token hangs on the last one alone. The head's attention looks at its own row alone, hands the
    normed token on, and says of it what the target does. shift: how far d2t is off.
    """
    weights = load_file(target / "model.safetensors")
    tensors = eagle_tensors("speculators", (4, 4, 16))
    nothing, itself = torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)
    for name, sharp in (("q", 40.0), ("k", 1.0), ("v", 1.0)):
        tensors[f"layers.0.self_attn.{name}_proj.weight"] = torch.cat([sharp * itself, nothing], dim=1)
    tensors["layers.0.self_attn.o_proj.weight"] = itself
    tensors["layers.0.mlp.down_proj.weight"].zero_()
    tensors["layers.0.hidden_norm.weight"].zero_()
    tensors["layers.0.input_layernorm.weight"].fill_(1.0)
    tensors["norm.weight"] = weights["model.norm.weight"]
    tokens = known_tokens(known=known)
    tensors["lm_head.weight"] = weights["lm_head.weight"][tokens]
    tensors["d2t"] = (tokens + shift) % VOCABULARY - torch.arange(known)
    del tensors["t2d"]
    changes = {"draft_vocab_size": known, "norm_before_residual": True}
    return make_eagle_dir(path, "speculators", (4, 4, 16), tensors=tensors, **changes)


def make_medusa_dir(path: Path, *, heads: int = 4, seed: int = 0) -> Path:
    """Write Medusa heads."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(heads):
        tensors[f"{head}.0.linear.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator) / 8
        tensors[f"{head}.0.linear.bias"] = torch.randn(HIDDEN, generator=generator) / 8
        tensors[f"{head}.1.weight"] = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    return write_medusa(path, tensors, medusa_num_heads=heads)


def write_medusa(
    path: Path, tensors: dict[str, torch.Tensor], *, pickled: bool = False, **config: Any
) -> Path:
    """As the first version's tools wrote them, or as safetensors."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"medusa_num_layers": 1} | config))
    if pickled:
        torch.save(tensors, path / "medusa_lm_head.pt")
    else:
        save_file(tensors, path / "medusa_lm_head.safetensors")
    return path


_MELLUM = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_mtp_layers": 1,
    "sliding_window": 8,
    "layer_types": ["full_attention", *["sliding_attention"] * 4],  # the last one is the module's
}


def make_mtp_dir(path: Path, family: str) -> Path:
    """A target with a multi-token-prediction module, by the keys that the family's files have for it.

    The module's decoder layer is the last one of a target that is a layer deeper.
    """
    make_model_dir(path, family, num_hidden_layers=LAYERS + 1, **(_MELLUM if family == "mellum" else {}))
    config = json.loads((path / "config.json").read_text())
    whole = [key for key, value in config.items() if isinstance(value, list) and len(value) == LAYERS + 1]
    config |= {key: config[key][:LAYERS] for key in whole} | {"num_hidden_layers": LAYERS}
    (path / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    last = f"model.layers.{LAYERS}."
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    added = dict(zip(names, (f"{last}{name}.weight" for name in names), strict=True))
    tensors = load_file(path / "model.safetensors")
    if family == "mellum":
        tensors = {key.replace(last, "mtp.layers.0."): value for key, value in tensors.items()}
        own = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        added = {name: f"mtp.{key}.weight" for name, key in zip(names, own, strict=True)}
    for name, key in added.items():
        size = (HIDDEN, 2 * HIDDEN) if name == "eh_proj" else (HIDDEN,)
        tensors[key] = torch.randn(size, generator=generator)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path
