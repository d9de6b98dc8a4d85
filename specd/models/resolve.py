"""From `model.target.path` to a checked local directory."""

import re
from pathlib import Path
from typing import Final

from specd.errors import MissingModelError, ModelError
from specd.local_paths import local_path
from specd.models import directory, gguf, manifest
from specd.models.cache import cache_dir

DEMO: Final = "demo"
_DEMO_ELSEWHERE: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED: Final = ["*.safetensors", "*.json", "*.jinja"]


def demo_directory(cache: Path) -> Path:
    """Where the demo model is kept."""
    return cache / "models" / DEMO


def resolve_target(target: str, *, download: bool = True, ours: bool = True) -> Path:
    """A complete model that this version can serve; ours: by its own engine. Raises `ModelError`.

    `demo` is what `specd models fetch demo` made; what is a path or exists is a directory or a GGUF file, which is
    dequantised into the cache; `org/name` is a hub name, of which only weights, configs and tokenizer are downloaded,
    never code. A symbolic link is followed once, here: what it leads to later is another model.
    """
    try:
        path = _locate(target, download=download)
        file = gguf.gguf_file(path)
        if file is not None:
            path = gguf.dequantised(file, cache_dir())
        if path.is_dir():
            path = path.resolve()
        directory.check(path, ours=ours)
    except OSError as error:
        raise ModelError(f"{target}: cannot be read: {error.strerror}") from None
    return path


def public_name(target: str) -> str:
    """What others know it by, named as for `resolve_target`; of a path, which says nothing to them, the last part."""
    if target == DEMO:
        return _DEMO_ELSEWHERE
    local = local_path(target)
    return target if not local.exists() and _HUB_NAME.fullmatch(target) else local.resolve().name


def still_to_convert(target: str) -> Path | None:
    """The GGUF file that the first `specd run` will dequantise, seen to be one that it can. Raises `ModelError`."""
    try:
        file = None if target == DEMO else gguf.gguf_file(local_path(target))
    except OSError as error:
        raise ModelError(f"{target}: cannot be read: {error.strerror}") from None
    if file is None or manifest.damage(gguf.place_of(file, cache_dir())[0]) is None:
        return None
    gguf.convert(file, None)
    return file


def _locate(target: str, *, download: bool) -> Path:
    if target == DEMO:
        return _demo(demo_directory(cache_dir()))
    local = local_path(target)
    if local.exists() or local.suffix == gguf.SUFFIX or not _HUB_NAME.fullmatch(target):
        return local
    return _from_hub(target, download=download)


def _demo(path: Path) -> Path:
    damage = manifest.damage(path)
    if damage is None:
        return path
    if path.exists():
        raise ModelError(
            f"the demo model is damaged ({damage}): run `specd models fetch demo` to make it anew"
        )
    raise ModelError(f"the demo model is not in {path.parent}: run `specd models fetch demo` once")


def _from_hub(name: str, *, download: bool) -> Path:
    # Only who names a hub model pays for importing the hub's client.
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=not download))
    except errors.GatedRepoError:
        raise ModelError(
            f"{name}: its owners ask for a licence click: accept it there, then set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{name}: neither a local directory nor a model on the hub (private ones need HF_TOKEN)"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError):
        raise MissingModelError(_unreachable(name, download=download)) from None


def _unreachable(name: str, *, download: bool) -> str:
    if not download:
        return f"{name}: neither a local directory nor downloaded yet; `specd run` would ask the hub for it"
    return (
        f"{name}: no local directory, and the hub cannot be reached:"
        " go online once, or name a directory that holds the model"
    )
