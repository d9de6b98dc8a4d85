"""How a draft is trained: the process that is started for it, by a command or by the daemon."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from specd.models.cache import cache_dir

PROGRAM: Final = (sys.executable, "-m", "engine.train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is to be trained, on what, and what it may take."""

    kind: Literal["eagle3", "medusa", "layer-skip"]
    target: Path
    """A directory."""
    name: str
    """Of the target, as others know it."""
    fingerprint: str
    """Of the target, by which a head is known to be its."""
    prompts: str
    """A file of JSON lines, or "builtin"."""
    out: Path
    tokens: int
    """Of answers."""
    minutes: float
    """Of the training itself."""
    disk: float
    """GB."""
    seed: int
    workers: int

    def arguments(self) -> list[str]:
        """Of the program."""
        given = {**asdict(self), "cache": cache_dir() / "kernels"}
        return [f"--{name}={value}" for name, value in given.items()]
