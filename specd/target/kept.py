"""What the canary keeps: in memory of a few pairs, in files of some more, and what served last, for the next start."""

import logging
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from engine.api import DraftKind
from policies.canary import Counts
from specd.alerts.finding import Pair
from specd.models.cache import write_json

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_OF_PAIRS: Final = "*+*.json"
_KEPT_FILES: Final = 64
_REMEMBERED: Final = 8


class Kept(msgspec.Struct, frozen=True):
    """What a pair's drafts came to."""

    target_revision: str
    draft_revision: str
    counts: dict[DraftKind, list[Counts]]
    asked: str = ""
    """Which prompts, texts and lengths of drafts: only what was asked the same can be compared."""

    @property
    def pair(self) -> Pair:
        """Whose drafts."""
        return Pair(self.target_revision, self.draft_revision)


class Served(Kept, frozen=True):
    """The same of the pair that served last, without counts where nobody has asked yet, and what goes on with it."""

    head: str = ""
    """That drafts without having been named, see `Files.last_head`."""
    fallen: tuple[DraftKind, ...] = ()
    """Whose acceptance fell, by the canary."""


def remember(kept: dict[K, V], key: K, value: V) -> None:
    """As the newest, with the few before it: every update brings another."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]


def read(file: Path, kind: Any) -> Any:
    """None where there is nothing that can be read: then it is asked for again."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(file: Path, value: object) -> None:
    """What cannot be kept costs a replay later, and is said."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, value)
        for older in sorted(file.parent.glob(_OF_PAIRS), key=lambda one: one.stat().st_mtime)[:-_KEPT_FILES]:
            older.unlink()
    except OSError as error:
        log.warning("what the canary found is not kept: %s: %s", file, error.strerror)
