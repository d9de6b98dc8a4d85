"""EAGLE-3 heads: what they read, how they begin, how they are written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from engine.train import export, pipeline
from engine.train.corpus import Vocabulary
from engine.train.eagle3_head import Eagle3, Sizes
from engine.train.errors import TrainError
from engine.train.job import Job

DRAFT_VOCABULARY: Final = 8_192
STEPS: Final = 4
_TYPES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Whose blocks are llama's up to what a head leaves out: biases, and norms of queries and keys."""


def layers(count: int) -> tuple[int, ...]:
    """Whose hidden states are read: low, middle, high, as `hidden_states` counts them, 0 being the embeddings."""
    return (2, count // 2, count - 3)


def draft_vocabulary(vocabulary: int) -> int:
    """Tokens that the head can guess."""
    return min(DRAFT_VOCABULARY, vocabulary)


def make(target: Any, vocabulary: Vocabulary) -> Eagle3:
    """A head that begins with what the target knows. Raises TrainError where its blocks are others."""
    config = target.config.get_text_config()
    if config.model_type not in _TYPES:
        raise TrainError(
            f"an EAGLE-3 head begins as a llama block, and {config.model_type} has others: "
            f"it can be trained for {', '.join(sorted(_TYPES))}"
        )
    head = Eagle3(sizes(config, len(vocabulary.kept)))
    begin_from(head, target, vocabulary.kept)
    return head


def sizes(config: Any, kept: int) -> Sizes:
    """From transformers' config of the target."""
    return Sizes(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        eps=config.rms_norm_eps,
        theta=config.rope_parameters["rope_theta"],
        aux=len(layers(config.num_hidden_layers)),
        draft_vocabulary=kept,
    )


@torch.no_grad()
def begin_from(head: Eagle3, target: Any, kept: Tensor) -> None:
    """Start from the target's last layer, its norm, and its rows for the tokens kept.

    The hidden half of q, k and v is the target's; the embedding half begins at nothing, and so does what fc reads of
    the lower states.
    """
    last, hidden = target.model.layers[-1], head.sizes.hidden
    head.fc.weight.zero_()
    head.fc.weight[:, -hidden:] = torch.eye(hidden)
    layer = head.layer
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, name).weight
        weight.zero_()
        weight[:, hidden:] = getattr(last.self_attn, name).weight
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    layer.input_layernorm.weight.copy_(last.input_layernorm.weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.norm.weight.copy_(target.model.norm.weight)
    head.lm_head.weight.copy_(target.lm_head.weight[kept])


def write(head: nn.Module, vocabulary: Vocabulary, target: Any, job: Job) -> None:
    """config.json and model.safetensors in the `speculators` layout. The embeddings stay with the target."""
    tensors = {name: tensor.bfloat16() for name, tensor in head.state_dict().items()}
    kept = vocabulary.kept
    tensors["d2t"] = kept - torch.arange(len(kept))
    tensors["t2d"] = vocabulary.places >= 0
    export.write(Path(job.out), config(target, len(kept), job.name), tensors)


def config(target: Any, kept: int, name: str) -> Mapping[str, Any]:
    """What `speculators` and the engines that read its layout want to know."""
    text = target.config.get_text_config()
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": STEPS,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": name,
                "architectures": list(target.config.architectures or []),
            },
        },
        "transformer_layer_config": _layer_config(text),
        "draft_vocab_size": kept,
        "target_hidden_size": text.hidden_size,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": list(layers(text.num_hidden_layers)),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _layer_config(text: Any) -> dict[str, Any]:
    """Of one llama layer with the target's sizes; angles in the older spelling too, which older engines read."""
    theta = text.rope_parameters["rope_theta"]
    layer = LlamaConfig(
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None),
        rms_norm_eps=text.rms_norm_eps,
        vocab_size=text.vocab_size,
        max_position_embeddings=text.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "rms_norm_eps", "vocab_size", "max_position_embeddings", "hidden_act", "attention_bias",
        "mlp_bias", "rope_parameters", "model_type",
    )  # fmt: skip
    return {**{key: getattr(layer, key) for key in keys}, "rope_theta": theta, "rope_scaling": None}


def train(job: Job) -> None:
    """See engine.train.kinds."""
    pipeline.train(job)
