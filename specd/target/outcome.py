"""What came of changes of target and draft, for people and programs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from specd.config.schema import Config
from specd.target.canary import Judged
from specd.target.line import Identity, Line


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change of target or draft, or a look at them, came to."""

    changed: bool
    text: str
    """A sentence for people."""
    target_revision: str
    draft_revision: str
    seconds: float
    canary: tuple[Judged, ...] = ()

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "changed": self.changed,
            "text": self.text,
            "target_revision": self.target_revision,
            "draft_revision": self.draft_revision,
            "seconds": self.seconds,
            "canary": [judged.document() for judged in self.canary],
        }


@dataclass(frozen=True, slots=True)
class Last:
    """How the last attempt ended."""

    unix_time: float
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Changed:
    """How the target that serves came to take the place of another one."""

    unix_time: float
    by: Literal["update", "rollback"]
    previous: str
    """The revision that served before."""


def fallen(judged: Iterable[Judged]) -> str:
    """What is to be added to a sentence on an update."""
    return "".join(f"; {each.text()}" for each in judged if each.bad)


def line_as_json(line: Line, config: Config) -> dict[str, Any]:
    """For people: what it serves, and who is in it."""
    identity: Identity | None = line.identity(config)
    return {
        "path": line.target.path,
        "target_revision": None if identity is None else identity.target_revision,
        "draft_revision": None if identity is None else identity.draft_revision,
        "quantization": None if identity is None else identity.quantization,
        "head": None if line.files is None or line.files.drafts.head is None else str(line.files.drafts.head),
        "proposers": list(line.drafters),
        "doubts": list(line.files.doubts) if line.files is not None else [],
        "kept": line.runs,
        "requests": len(line.supervisor.flights),
    }
