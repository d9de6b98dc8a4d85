"""The files of a fetched model directory with their hashes, written last: its presence means complete."""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from specd.models.cache import Stamp, stamp, write_json

NAME: Final = "specd-manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """What a fetched model directory holds."""

    source: str
    files: dict[str, Stamp]
    source_sha256: str = ""
    """Of the one file that it was made from, if that identifies the model."""


def write(directory: Path, source: str, source_sha256: str = "") -> None:
    """Hash every file of the directory and record it."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != NAME)
    stamps = {path.name: stamp(path) for path in files}
    write_json(directory / NAME, Manifest(source, stamps, source_sha256))


def read(directory: Path) -> Manifest | None:
    """What a fetched directory says of itself; None for any other."""
    try:
        return msgspec.json.decode((directory / NAME).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def damage(directory: Path) -> str | None:
    """What is wrong with a fetched directory, or None. Reads a file only if its size or time changed."""
    try:
        manifest = msgspec.json.decode((directory / NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "there is none" if not directory.exists() else f"{directory} has no {NAME}"
    except (OSError, msgspec.DecodeError):
        return f"{directory / NAME} cannot be read"
    try:
        current = {name: _current(directory / name, old) for name, old in manifest.files.items()}
    except OSError as error:
        return f"{error.filename} cannot be read"
    changed = [name for name, old in manifest.files.items() if current[name].sha256 != old.sha256]
    if changed:
        return f"{directory / changed[0]} is not what was fetched"
    if current != manifest.files:
        with contextlib.suppress(OSError):  # only so that the next look is quick again
            write_json(directory / NAME, msgspec.structs.replace(manifest, files=current))
    return None


def _current(path: Path, old: Stamp) -> Stamp:
    return old if old.fits(path) else stamp(path)
