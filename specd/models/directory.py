"""Whether a Hugging Face directory holds a whole model that the engine can run. Reads headers, no tensors."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from specd.errors import MissingModelError, ModelError
from specd.models.architecture import unsupported

T = TypeVar("T")

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_HEADER_LIMIT: Final = 100 << 20  # the format's own


class Tensor(msgspec.Struct):
    """An entry of a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    """Behind the header: where its bytes begin and end."""


class TensorFile(NamedTuple):
    """A safetensors file whose length is right."""

    path: Path
    start: int
    """Where the header has ended."""
    tensors: dict[str, Tensor]


def check(path: Path, *, ours: bool = True) -> None:
    """Raise `ModelError` with a line per fault. ours: see `faults`."""
    found = faults(path, ours=ours)
    if found:
        raise (ModelError if _holds_something(path) else MissingModelError)("\n".join(found))


def faults(path: Path, *, ours: bool = True) -> list[str]:
    """What keeps the model from being served, a sentence each. ours: by specd's own engine; any other says itself which
    architectures it knows.
    """
    if not path.is_dir():
        return [f"{path}: {_no_directory(path)}"]
    return [*_config_faults(path, ours=ours), *_tokenizer_faults(path), *_weight_faults(path)]


def _holds_something(path: Path) -> bool:
    """Where a disk is to be mounted, there is an empty directory before."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _no_directory(path: Path) -> str:
    if path.exists():
        return "is a file, not a model directory"
    return "is a symbolic link that leads nowhere" if path.is_symlink() else "there is no such directory"


def read_config(path: Path) -> dict[str, Any]:
    """The directory's config.json. Raises `ModelError`."""
    return _read_json(path / "config.json")


def chat_template(path: Path) -> str | None:
    """The directory's chat template, in a file of its own or in the tokenizer's settings. Raises `ModelError`."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    settings = path / "tokenizer_config.json"
    template = _read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template}.get("default")
    return template if isinstance(template, str) else None


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights, in name order. Raises `ModelError` where there are none."""
    if (path / INDEX).exists():
        return [path / name for name in sorted(set(_weight_map(path).values()))]
    if (path / WEIGHTS).exists():
        return [path / WEIGHTS]
    raise ModelError(f"{path}: {_instead_of_weights(path)}")


def _config_faults(path: Path, *, ours: bool) -> list[str]:
    try:
        config = read_config(path)
    except ModelError as error:
        return [str(error)]
    reason = unsupported(config) if ours else None
    return [] if reason is None else [f"{path / 'config.json'}: {reason}"]


def _tokenizer_faults(path: Path) -> list[str]:
    try:
        _read_json(
            path / "tokenizer.json", dict[str, msgspec.Raw]
        )  # seen to be whole, without 20 MiB of objects
    except ModelError as error:
        return [str(error)]
    return []


def _weight_faults(path: Path) -> list[str]:
    try:
        files = weight_files(path)
        names = {file: tensor_names(file) for file in files}
    except ModelError as error:
        return [str(error)]
    if not (path / INDEX).exists():
        return []
    lost = [name for name, file in _weight_map(path).items() if name not in names[path / file]]
    return (
        [f"{path / INDEX}: {lost[0]} is not in the file that it names; copy the model again"] if lost else []
    )


def tensor_names(file: Path) -> set[str]:
    """The tensors of a safetensors file whose length is right. Raises `ModelError`."""
    return set(tensor_shapes(file))


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The same with their shapes. Raises `ModelError`."""
    return {name: tensor.shape for name, tensor in tensor_file(file).tensors.items()}


def tensor_file(file: Path) -> TensorFile:
    """What a safetensors file holds, without its tensors. Raises `ModelError`."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header, start = _header(stream.read(8), stream, size)
    except FileNotFoundError:
        raise ModelError(f"{file}: missing; the model is incomplete, copy it again") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise ModelError(
            f"{file}: no readable safetensors header in its {size} bytes; copy it again"
        ) from None
    expected = start + max((entry.data_offsets[1] for entry in header.values()), default=0)
    if size != expected:
        raise ModelError(f"{file}: half-written, {size} of {expected} bytes; copy it again")
    return TensorFile(file, start, header)


def _header(length: bytes, stream: Any, size: int) -> tuple[dict[str, Tensor], int]:
    """The header and where the tensors start. Raises ValueError."""
    if len(length) < 8:
        raise ValueError
    (count,) = struct.unpack("<Q", length)
    if count > min(_HEADER_LIMIT, size - 8):
        raise ValueError
    entries = msgspec.json.decode(stream.read(count), type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    return {name: msgspec.json.decode(raw, type=Tensor) for name, raw in entries.items()}, 8 + count


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = _read_json(path / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path / INDEX}: has no weight_map; copy the model again")
    return {str(name): str(file) for name, file in weight_map.items()}


def _instead_of_weights(path: Path) -> str:
    other = next(_other_formats(path), None)
    if other is None:
        return f"holds no weights: there is neither {WEIGHTS} nor {INDEX}"
    return f"holds {other.name} but no {WEIGHTS}; convert it with transformers' save_pretrained"


def _other_formats(path: Path) -> Iterator[Path]:
    for pattern in ("*.bin", "*.pt", "*.gguf", "*.pth"):
        yield from sorted(path.glob(pattern))


def _read_json(path: Path, kind: type[dict[str, T]] = dict[str, Any]) -> dict[str, T]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise MissingModelError(
            f"{path}: missing; this is no complete Hugging Face model directory"
        ) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: not valid JSON ({error}); copy the model again") from None
