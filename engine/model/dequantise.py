"""`python -m engine.model.dequantise SOURCE.gguf [DIRECTORY]`: a GGUF as a plain bf16 Hugging Face directory.

A program of its own, so that the daemon that asks for it stays free of tensors. A file that cannot be served is refused
before its tensors are read: the reason on standard output, exit code 2. Without DIRECTORY that is all that happens.
"""

import sys
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from engine.model.support import unsupported_reason

_REFUSED: Final = 2


def refusal(source: Path) -> str | None:
    """Why a GGUF file cannot be served, from its metadata alone; transformers' own words where it cannot read it."""
    try:
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    except (ValueError, KeyError, OSError, NotImplementedError) as fault:
        return f"transformers cannot read it: {fault}"
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001
    if model_class is None:
        return f"{config.model_type} is not a causal language model in transformers"
    return unsupported_reason(config, model_class)


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


def main(source: Path, directory: Path | None) -> int:
    """Exit code 2 with the reason on standard output where the file is not one that can be served."""
    logging.set_verbosity_error()
    reason = refusal(source)
    if reason is not None:
        print(reason)  # noqa: T201  the answer that the caller reads
        return _REFUSED
    if directory is not None:
        dequantise(source, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
