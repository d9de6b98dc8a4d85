"""The file that says which layers to leave out: written by the search, read where drafts are configured. No torch."""

from pathlib import Path
from typing import Final, Literal

import msgspec

FILE_NAME: Final = "layer_skip.json"


class SkipFileError(ValueError):
    """The file cannot be used; the message says why and what to do."""


class SkipSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of layers, and what it is expected to bring."""

    kind: Literal["layer-skip"] = "layer-skip"
    target: str
    """Fingerprint of the target that it was searched for."""
    layers: int
    """That the target has."""
    skip: tuple[int, ...]
    """Those left out, ascending, the first layer being 0."""
    examined: list[int]
    """By position in the draft, on texts that the search did not see; rounds begin at every token of theirs."""
    accepted: list[int]
    cost: float
    """Of drafting a token, in plain decode steps, as measured where the search ran."""
    k: int
    """The draft length that is best by these."""
    speedup: float
    """Expected at that length, with one running request, over plain decoding."""
    seed: int
    texts: str
    """Where the texts came from."""
    tokens: int
    """That the search looked at."""
    command: str
    """What was typed."""

    @property
    def acceptance(self) -> list[float]:
        """Conditional, by position."""
        return [a / max(e, 1) for e, a in zip(self.examined, self.accepted, strict=True)]

    def write(self, directory: Path) -> Path:
        """Write it into a directory; returns the file."""
        path = directory / FILE_NAME
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        return path


def read_skip_set(path: Path) -> SkipSet:
    """From a file, or from the directory that it was written to. Raises SkipFileError."""
    file = path / FILE_NAME if path.is_dir() else path
    try:
        found = msgspec.json.decode(file.read_bytes(), type=SkipSet)
    except OSError as fault:
        raise SkipFileError(f"{file} cannot be read: {fault.strerror}") from None
    except msgspec.DecodeError as fault:
        raise SkipFileError(f"{file} is no skip set of ours: {fault}") from None
    outside = [layer for layer in found.skip if not 0 <= layer < found.layers]
    if outside:
        raise SkipFileError(f"{file} names layers {outside} of a model with {found.layers}: search again")
    return found


def misfit(found: SkipSet, fingerprint: str) -> str | None:
    """Why it is not for the target with this fingerprint, if so."""
    if found.target == fingerprint:
        return None
    return (
        f"the layers were searched for target {found.target}, and this one is {fingerprint}: search again with "
        "`specd draft train --kind layer-skip`, or unset it"
    )
