"""What a directory with a draft model or a head is, and whether it fits a target. Reads headers, no tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from engine.pairing.pair import misfit
from specd.errors import MissingModelError, ModelError
from specd.models import directory
from specd.models.directory import read_config, tensor_shapes

_PREFIX: Final = "medusa_heads."
_MEDUSA: Final = "0.0.linear.weight"
_EAGLE: Final = "fc.weight"
_PICKLES: Final[Mapping[str, Literal["eagle", "medusa"]]] = {
    "medusa_lm_head.pt": "medusa",
    "pytorch_model.bin": "eagle",
}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A directory that drafts can be made of."""

    path: Path
    kind: Literal["model", "eagle", "medusa"]
    weight_bytes: int
    shapes: Shapes = field(default_factory=dict)
    """Of a head's tensors, where they are in safetensors."""

    def misfit(self, target: Path, *, mapped: bool = False) -> str | None:
        """Why it cannot draft for the model in this directory, or None. mapped: a model may have other tokens.

        Of heads the sizes are looked at; the engine has the last word when it loads them.
        """
        if self.kind == "model":
            return misfit(target, self.path, mapped=mapped)
        config = read_config(target)
        return next(_head_misfits(self, config | (config.get("text_config") or {})), None)


def inspect(path: Path) -> DraftFiles:
    """What is in a directory. Raises `ModelError` where nothing that can draft is."""
    if not path.is_dir():
        raise MissingModelError(f"{path}: there is no such directory")
    read_config(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        return _old_head(path)
    size = sum(file.stat().st_size for file in files)
    shapes = {
        name.removeprefix(_PREFIX): shape for file in files for name, shape in tensor_shapes(file).items()
    }
    if _MEDUSA in shapes:
        return DraftFiles(path, "medusa", size, shapes)
    if _EAGLE in shapes:
        return DraftFiles(path, "eagle", size, shapes)
    directory.check(path)
    return DraftFiles(path, "model", size)


def _old_head(path: Path) -> DraftFiles:
    for name, kind in _PICKLES.items():
        if (path / name).exists():
            return DraftFiles(path, kind, (path / name).stat().st_size)
    raise ModelError(
        f"{path}: holds no weights: there are neither *.safetensors nor {' nor '.join(_PICKLES)}"
    )


def _head_misfits(files: DraftFiles, target: Mapping[str, object]) -> Iterator[str]:
    """A head reads the target's hidden states, and speaks its tokens."""
    for what, key, fitting in (
        ("reads hidden states of", "hidden_size", _widths(files)),
        ("speaks a vocabulary of", "vocab_size", _vocabularies(files.shapes)),
    ):
        if fitting and target.get(key) not in fitting:
            wanted = " or ".join(f"{size:g}" for size in fitting)
            yield f"the head {what} {wanted}, and the target's {key} is {target.get(key)}"


def _widths(files: DraftFiles) -> tuple[float, ...]:
    """Hidden sizes that a target may have. An EAGLE-3 head joins three states, an older one a state and a token."""
    if _EAGLE in files.shapes:
        joined = files.shapes[_EAGLE][1]
        return joined / 3, joined / 2
    return files.shapes.get(_MEDUSA, ())[:1]


def _vocabularies(shapes: Shapes) -> tuple[int, ...]:
    """Of the target: an EAGLE head with a part of it has a mark for each token."""
    return shapes.get("t2d", ())[:1]
