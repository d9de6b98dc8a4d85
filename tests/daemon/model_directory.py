"""Makes small model directories that look whole to whoever reads only headers."""

import json
import struct
from pathlib import Path

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}


def safetensors(*names: str) -> bytes:
    """A file with one float32 of zero per name."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n, name in enumerate(names)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4 * len(names))


def write_model(directory: Path, **config: object) -> Path:
    """A complete llama unless `config` says otherwise."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors("a", "b"))
    return directory


def write_sharded(directory: Path) -> Path:
    """The same in two files with an index."""
    write_model(directory)
    (directory / "model.safetensors").unlink()
    (directory / "one.safetensors").write_bytes(safetensors("a"))
    (directory / "two.safetensors").write_bytes(safetensors("b"))
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
