"""A model given as a GGUF file: dequantised once into the cache, and from then on a directory like any other.

models/gguf/<name>-<first twelve digits of the file's SHA-256>/
"""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from specd.errors import FetchError, MissingModelError, ModelError
from specd.models import manifest
from specd.models.building import empty_partial, finish, locked, quiet_environment
from specd.models.cache import HashCache

log = logging.getLogger(__name__)

SUFFIX: Final = ".gguf"
REFUSED: Final = 2
"""Exit code of the converter when the file is not for us; its standard output says why."""
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")
_PROGRAM: Final = (sys.executable, "-m", "engine.model.dequantise")

Convert = Callable[[Path, Path | None], None]


def convert(file: Path, into: Path | None) -> None:
    """Write a GGUF's model into a directory, or, without one, only see whether that could be done.

    In a process of its own, since it needs torch. Raises `ModelError` with transformers' reason.
    """
    command = [*_PROGRAM, str(file), *([] if into is None else [str(into)])]
    done = subprocess.run(  # noqa: S603  our arguments
        command, check=False, stdout=subprocess.PIPE, text=True, env=quiet_environment()
    )
    if done.returncode == REFUSED:
        raise ModelError(f"{file}: {done.stdout.strip()}")
    if done.returncode != 0:
        raise ModelError(
            f"{file}: the conversion failed (see above); it needs about five times the file's size in free memory"
        )


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a path stands for: itself, or the only one of a directory without safetensors.

    Raises `ModelError` where it is not one whole file.
    """
    found = [path] if path.suffix == SUFFIX and not path.is_dir() else _only_ggufs(path)
    if len(found) > 1:
        raise ModelError(
            f"{path}: holds {len(found)} GGUF files, {found[0].name} the first: name the one to serve"
        )
    if found and _SHARD.search(found[0].stem):
        raise ModelError(
            f"{found[0]}: is one part of a split GGUF: merge the parts first (llama-gguf-split --merge)"
        )
    if found and not found[0].exists():
        raise MissingModelError(f"{found[0]}: there is no such file")
    return found[0] if found else None


def _only_ggufs(path: Path) -> list[Path]:
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return []
    return sorted(path.glob(f"*{SUFFIX}"))


def place_of(file: Path, cache: Path) -> tuple[Path, str]:
    """Where the dequantised model of a file is kept, and the file's SHA-256, remembered while it does not change."""
    (digest,) = HashCache(cache / "hashes.json").sha256([file])
    return cache / "models" / "gguf" / f"{file.stem}-{digest[:12]}", digest


def dequantised(file: Path, cache: Path, convert: Convert = convert) -> Path:
    """The directory with a GGUF's weights in bfloat16, made now if it is not there and whole. Raises `ModelError`."""
    try:
        place, digest = place_of(file, cache)
        if manifest.damage(place) is not None:
            with locked(place, log.info):
                _make(file, place, digest, convert)
    except FetchError as error:
        raise ModelError(f"{file}: {error}") from None
    except OSError as error:
        raise ModelError(
            f"{error.filename or cache}: {error.strerror}; choose another place with SPECD_CACHE_DIR"
        ) from None
    log.info("%s is served from %s, dequantised to bfloat16", file.name, place)
    return place


def _make(file: Path, place: Path, digest: str, convert: Convert) -> None:
    if manifest.damage(place) is None:
        return  # whoever held the lock has made it
    log.info(
        "dequantising %s (%d MiB) to bfloat16, once; this takes a while", file, file.stat().st_size >> 20
    )
    partial = empty_partial(place)
    convert(file, partial)
    finish(partial, place, source=file.name, source_sha256=digest)
