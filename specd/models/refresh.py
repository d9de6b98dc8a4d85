"""A target with other weights: what a trainer pushes as a safetensors file, joined with the rest of the model.

models/refreshed/<target's fingerprint>-<first twelve digits of the file's SHA-256>/

The tensors are copied, so that the trainer may write its next ones over the file while these are served.
"""

import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from specd.errors import FetchError, ModelError
from specd.models import manifest
from specd.models.building import empty_partial, finish, locked
from specd.models.cache import HashCache
from specd.models.directory import INDEX, WEIGHTS, Tensor, TensorFile, tensor_file, weight_files
from specd.models.identity import fingerprint

log = logging.getLogger(__name__)

_PIECE: Final = 16 << 20
_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8

Source = tuple[TensorFile, Tensor]
"""A tensor, and the file that holds it."""


def refreshed(target: Path, weights: Path, cache: Path, spared: Collection[Path]) -> Path:
    """The directory of the target with the file's tensors in the place of its own. Directories made for earlier files
    go, but for those that are spared. Raises `ModelError`.
    """
    tensors = _joined(target, weights)
    hashes = HashCache(cache / "hashes.json")
    (digest,) = hashes.sha256([weights])
    place = cache / "models" / "refreshed" / f"{fingerprint(target, hashes)}-{digest[:12]}"
    with locked(place, log.info):
        if manifest.damage(place) is not None:
            _clear(place.parent, {*spared, target, place})
            partial = empty_partial(place)
            _copy_rest(target, partial)
            _write(tensors, partial / WEIGHTS)
            try:
                finish(partial, place, str(weights))
            except FetchError as fault:
                raise ModelError(str(fault)) from None
    return place


def _joined(target: Path, weights: Path) -> dict[str, Source]:
    """The target's tensors, those of the file first. Raises `ModelError` where it has what the target has not."""
    ours: dict[str, Source] = {}
    for file in map(tensor_file, weight_files(target)):
        ours |= {name: (file, tensor) for name, tensor in file.tensors.items()}
    pushed = tensor_file(weights)
    if not pushed.tensors:
        raise ModelError(f"{weights}: holds no tensors: push some of the target's")
    for name, tensor in pushed.tensors.items():
        if reason := _unfit(name, tensor, ours):
            raise ModelError(f"{weights}: {reason}")
    return ours | {name: (pushed, tensor) for name, tensor in pushed.tensors.items()}


def _unfit(name: str, tensor: Tensor, ours: Mapping[str, Source]) -> str | None:
    if name not in ours:
        return f"the target has no tensor {name}: push a model of its own architecture, with its own names"
    shape = ours[name][1].shape
    if shape != tensor.shape:
        return f"{name} is {list(tensor.shape)} there and {list(shape)} in the target: push a model of its own sizes"
    return None


def _copy_rest(target: Path, partial: Path) -> None:
    """Config, tokenizer and what else lies beside the weights."""
    left = {file.name for file in weight_files(target)} | {INDEX, manifest.NAME}
    for file in target.iterdir():
        if file.is_file() and file.name not in left and file.suffix in {".json", ".jinja", ".model", ".txt"}:
            shutil.copyfile(file, partial / file.name)


def _write(tensors: Mapping[str, Source], file: Path) -> None:
    """One file with all of them, in name order."""
    header, at = {}, 0
    for name in sorted(tensors):
        _, tensor = tensors[name]
        size = tensor.data_offsets[1] - tensor.data_offsets[0]
        header[name] = Tensor(tensor.dtype, tensor.shape, (at, at + size))
        at += size
    text = _padded(msgspec.json.encode({"__metadata__": {"format": "pt"}, **header}))
    with file.open("wb") as out:
        out.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in sorted(tensors):
            for piece in _bytes(*tensors[name]):
                out.write(piece)


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % _ALIGNMENT)


def _bytes(file: TensorFile, tensor: Tensor) -> Iterator[bytes]:
    begin, end = tensor.data_offsets
    with file.path.open("rb") as stream:
        stream.seek(file.start + begin)
        yield from _pieces(stream, end - begin)


def _pieces(stream: BinaryIO, size: int) -> Iterator[Any]:
    while size > 0:
        piece = stream.read(min(size, _PIECE))
        if not piece:
            raise ModelError(f"{stream.name}: it became shorter while it was read: push it again")
        yield piece
        size -= len(piece)


def _clear(directory: Path, spared: Collection[Path]) -> None:
    """What earlier files were made into."""
    kept = {path.resolve() for path in spared}
    for old in directory.iterdir() if directory.is_dir() else ():
        if old.is_dir() and old.resolve() not in kept:
            shutil.rmtree(old, ignore_errors=True)
