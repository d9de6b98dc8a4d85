"""Tiny models with random weights and a byte-level tokenizer: real directories, loaded in a second."""

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 320
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_WINDOW = 8
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_GROUPED_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": _WINDOW},
    "ministral3": {  # queries are scaled by how far they are beyond the original context
        "sliding_window": _WINDOW,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gemma2": {"sliding_window": _WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": _WINDOW, "query_pre_attn_scalar": 16, "layer_types": _ALTERNATING},
    "phi3": {
        "sliding_window": _WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "olmo2": {},
    "gpt_oss": {"sliding_window": _WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "starcoder2": {"sliding_window": _WINDOW},
    "gpt_neox": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    },
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},  # its positions begin at 2
    "cohere2": {"sliding_window": _WINDOW, "layer_types": _ALTERNATING, "logit_scale": 0.25},
    "exaone4": {"sliding_window": _WINDOW, "layer_types": _ALTERNATING},
    "glm4_moe": _GROUPED_EXPERTS,
    "deepseek_v3": _GROUPED_EXPERTS  # values are narrower than keys
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "head_dim": 8,
    },
}


def make_tokenizer() -> Tokenizer:
    """Bytes and a few merges, with three special tokens at the front; every text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the daemon drafts and the target decides " * 4, "def add(a, b):\n    return a + b\n"], trainer
    )
    return tokenizer


def make_noisy_dir(source: Path, path: Path, *, noise: float, seed: int = 1) -> Path:
    """A model like the one in `source`, each weight off by about this share of its tensor's spread."""
    shutil.copytree(source, path, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * noise)
    model.save_pretrained(path)
    return path


def make_model_dir(
    path: Path, family: str = "llama", *, seed: int = 0, scale: float = 4.0, **changes: Any
) -> Path:
    """Write config, random weights, tokenizer and chat template of a tiny model. A larger scale makes surer rows."""
    torch.manual_seed(seed)
    values = _COMMON | FAMILIES.get(family, {}) | changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "lm_head" not in name:
                parameter.mul_(scale)
    model.save_pretrained(path)
    make_tokenizer().save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (path / "tokenizer_config.json").write_text('{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}')
    return path
