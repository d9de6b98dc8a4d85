"""Tiny encoder-decoder models of T5's kind with random weights: real directories."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from tests.tiny import VOCABULARY, make_tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 4,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 24,
    "decoder_start_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "t5", "feed_forward_proj": "relu"},
    "t5-v1.1": {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    "umt5": {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
}


def make_t5_dir(path: Path, kind: str = "t5", *, seed: int = 0, noise: float = 0.0, **changes: Any) -> Path:
    """Write config, random weights and tokenizer. A head of its own, where the kind has one, differs from the table of
    embeddings. No chat template: such models have none. noise: by which each weight is off, as a share of its tensor's
    spread.
    """
    torch.manual_seed(seed)
    values = _COMMON | KINDS[kind] | changes
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    if values.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_()  # nothing of positions would show otherwise
            elif "shared" in name:
                parameter.mul_(0.05)  # or a text would repeat its last token, whatever the layers say
            elif "Attention." in name:
                parameter.mul_(3.0)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * noise)
    model.save_pretrained(path)
    make_tokenizer().save(str(path / "tokenizer.json"))
    return path
