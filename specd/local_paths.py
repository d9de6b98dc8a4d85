"""Paths as people write them, before anything is asked of the file system by them."""

from pathlib import Path
from typing import Final

from specd.errors import ModelError

_LONGEST_NAME: Final = 255
_LONGEST: Final = 4095


def path_fault(text: str) -> str | None:
    """Why this can be no path on this host, whatever there is, or None."""
    if "\0" in text:
        return "no path holds a NUL character"
    if max(map(_size, Path(text).parts), default=0) > _LONGEST_NAME or _size(text) > _LONGEST:
        return "this is longer than a path can be"
    try:
        Path(text).expanduser()
    except RuntimeError:
        return "it begins with the home directory of a user that there is not"
    return None


def local_path(text: str) -> Path:
    """Where a model or a head is, with a home directory in the place of ~. Raises `ModelError`."""
    if fault := path_fault(text):
        raise ModelError(f"{text}: {fault}")
    return Path(text).expanduser()


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
