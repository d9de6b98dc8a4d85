"""`python -m engine.model.dequantise SOURCE.gguf DIRECTORY`: a GGUF as a plain bf16 Hugging Face directory.

A program of its own, so that the daemon that asks for it stays free of tensors.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging


def dequantise(source: Path, directory: Path) -> None:
    """Write weights, config, generation config and tokenizer of `source` into `directory`."""
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    _plain(model).save_pretrained(directory)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(directory)


def _plain(model: Any) -> Any:
    """The same weights in a model whose config no longer says quantised, which save_pretrained refuses."""
    values = model.config.to_dict()
    for stale in ("quantization_config", "_name_or_path"):
        values.pop(stale, None)
    plain = type(model)(type(model.config).from_dict(values)).to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain


if __name__ == "__main__":
    logging.set_verbosity_error()
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
