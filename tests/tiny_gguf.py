"""A tiny llama directory as a GGUF file, the way llama.cpp's converter writes one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, TokenType
from safetensors.numpy import load_file

_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(model: Path, target: Path, architecture: str = "llama") -> Path:
    """Weights in float32, tokenizer and chat template included."""
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(target, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, model)
    for name, weight in load_file(model / "model.safetensors").items():
        writer.add_tensor(*_renamed(name.removesuffix(".weight"), weight, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_tokenizer(writer: GGUFWriter, model: Path) -> None:
    made = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"] for token in made["added_tokens"]}
    tokens = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in made["model"]["merges"]]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template((model / "chat_template.jinja").read_text())


def _renamed(name: str, weight: np.ndarray, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    if name in _OUTSIDE:
        return f"{_OUTSIDE[name]}.weight", weight
    _, _, layer, inner = name.split(".", 3)
    if inner in {"self_attn.q_proj", "self_attn.k_proj"}:  # GGUF rotates pairs, transformers halves
        heads = config["num_attention_heads" if "q_proj" in inner else "num_key_value_heads"]
        weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    return f"blk.{layer}.{_BLOCK[inner]}.weight", np.ascontiguousarray(weight)
