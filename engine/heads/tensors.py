"""A head's files: its config, and its weights with every key accounted for.

Files of heads come from many tools. A key that nobody reads is a part of the head that nobody runs, and a key that is
missing is a part that would run on random numbers: either would show as a poor draft and nothing else. Both are errors.
"""

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.draft.errors import DraftSettingsError

Shapes = Mapping[str, tuple[int, ...]]


class HeadError(DraftSettingsError):
    """The head cannot be used with this target; the message says why."""


def read_config(folder: Path) -> dict[str, Any]:
    """A head's config.json. Raises HeadError."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as fault:
        raise HeadError(f"{file} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise HeadError(f"{file} is no JSON: {fault}") from fault
    if not isinstance(config, dict):
        raise HeadError(f"{file} holds no object")
    return config


def read_tensors(folder: Path, pickles: Sequence[str] = ()) -> dict[str, Tensor]:
    """All tensors of the safetensors in a folder, or else of the first of these older files that is there.

    An older file is a pickle, which is read as data: no code in it runs. Raises HeadError.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return _joined(folder, [_safe(file) for file in files])
    for file in (folder / name for name in pickles):
        if file.exists():
            return _unpickled(file)
    raise HeadError(f"{folder} has no weights: there is neither {' nor '.join(['*.safetensors', *pickles])}")


def account(
    tensors: Mapping[str, Tensor], wanted: Shapes, *, what: str, optional: Iterable[str] = ()
) -> None:
    """Refuse tensors that are not exactly those wanted, by key and shape. what: names the head in the sentence.

    optional: wanted keys that may be missing. Raises HeadError, which lists all that is wrong of the first kind found.
    """
    missing = sorted(wanted.keys() - tensors.keys() - set(optional))
    if missing:
        raise HeadError(f"{what} lacks {len(missing)} of its weights: {', '.join(missing)}")
    unknown = sorted(tensors.keys() - wanted.keys())
    if unknown:
        raise HeadError(f"{what} has {len(unknown)} weights that nothing reads: {', '.join(unknown)}")
    wrong = [
        f"{key} is {_size(tensor.shape)} and should be {_size(wanted[key])}"
        for key, tensor in sorted(tensors.items())
        if tuple(tensor.shape) != wanted[key]
    ]
    if wrong:
        raise HeadError(f"{what} does not fit the target: {'; '.join(wrong)}")


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Load tensors into a module that has exactly these weights, in its number format. Raises HeadError."""
    account(tensors, shapes_of(module), what=what)
    module.load_state_dict(tensors)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of a module's weights, by key."""
    return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _joined(folder: Path, parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for part in parts:
        twice = sorted(found.keys() & part.keys())
        if twice:
            raise HeadError(f"{folder} has {twice[0]} in two files: leave one of them there")
        found |= part
    return found


def _safe(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError) as fault:
        raise HeadError(f"{file} cannot be read as safetensors: {fault}") from fault


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as fault:
        first = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise HeadError(f"{file} cannot be read as plain weights: {first}") from fault
    strangers = (
        [key for key, value in found.items() if not isinstance(value, Tensor)]
        if isinstance(found, dict)
        else None
    )
    if strangers is None or strangers:
        raise HeadError(
            f"{file} holds more than tensors by name" + (f": {strangers[0]}" if strangers else "")
        )
    return dict(found)
