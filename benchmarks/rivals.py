"""The policies that are compared on one engine: the adaptive one, every static k, and k = 0."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count, islice
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.steady import Ask, Shown, decoding, in_batches, together, undisturbed
from engine.api import DraftSettings, Launch
from engine.core import Engine
from engine.processor import quick_format
from engine.sequence import Sequence as Text
from engine.start import start
from policies.controller import Controller
from policies.load import UNCAPPED
from policies.settings import PolicySettings
from specd.models.cache import cache_dir, hashes
from specd.models.drafts import shipped_head

ADAPTIVE: Final = "adaptive"
PLAIN: Final = "k = 0"
K_MOST: Final = 8
DRAFTED: Final = PolicySettings()
"""The adaptive policy: the one that a daemon has by default."""


def static(k: int) -> str:
    """The name of a fixed draft length."""
    return f"k = {k}"


STATIC: Final = tuple(static(k) for k in range(K_MOST + 1))

_TURN: Final = 3  # steps
_KV_BYTES: Final = 8 << 30  # of all policies' requests at once
T = TypeVar("T")


class Rivals:
    """Two controllers over the same measured costs, so that the adaptive one learns from its own rounds alone.

    The static ones share theirs: it knows who drafts best, so that each static k is as good as it can be.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._static = deepcopy(engine.policy)
        self._adaptive = deepcopy(engine.policy)
        self._adaptive.configure(DRAFTED)

    def policy(self, name: str) -> Controller:
        """By its name."""
        if name == ADAPTIVE:
            return self._adaptive
        k = int(name.removeprefix("k = "))
        self._static.configure(PolicySettings(kind="static" if k else "off", static_k=k, load=UNCAPPED))
        return self._static

    def shown(
        self, names: Sequence[str], prompts: Sequence[Ask], running: int, tokens: int
    ) -> dict[str, Shown]:
        """What each gives to so many of these prompts at a time, one batch after another."""
        steps: dict[str, list[Shown]] = {name: [] for name in names}
        for batch in in_batches(prompts, running):
            works = {name: decoding(self.engine, batch, tokens) for name in names}
            for name, step in self.in_turns(works):
                steps[name].append(step)
        return {name: together(undisturbed(of)) for name, of in steps.items()}

    def in_turns(self, works: Mapping[str, Iterator[T]]) -> Iterator[tuple[str, T]]:
        """(name, item) of each item, which is a step of that policy's work. They take turns of a few steps, so
        that whatever makes the machine faster or slower for a second meets all of them.
        """
        asides = {name: _Aside(self.engine) for name in works}
        left = list(works)
        for cycle in count():
            at = cycle % max(len(left), 1)
            for name in left[at:] + left[:at]:
                with asides[name].turn(), self.engine.lent(self.policy(name)):
                    items = list(islice(works[name], _TURN))
                yield from ((name, item) for item in items)
                if len(items) < _TURN:
                    left.remove(name)
            if not left:
                break
        self.engine.check_integrity()


class _Aside:
    """The requests of one policy. While others have their turn they wait, keys and all."""

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self._running: list[Text] = []
        self._waiting: deque[Text] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While entered, they are all that there is."""
        scheduler = self._scheduler
        scheduler.running, scheduler.waiting = self._running, self._waiting
        try:
            yield
        finally:
            self._running, self._waiting = scheduler.running, scheduler.waiting
            scheduler.running, scheduler.waiting = [], deque()


def engine(path: Path, draft: DraftSettings) -> Engine:
    """An engine that keeps no prefix: every prompt is read anew."""
    launch = Launch(
        model_path=str(path),
        dtype=quick_format(),
        cache_dir=str(cache_dir() / "kernels"),
        draft=draft,
        prefix_cache=False,
        kv_bytes=_KV_BYTES,
    )
    return start(launch, lambda _: None)


def automatic(path: Path) -> DraftSettings:
    """Who drafts for this target where nobody says who."""
    head = shipped_head(path, hashes())
    if head is None:
        return DraftSettings(kinds=("ngram",))
    return DraftSettings(kinds=("ngram", "eagle"), head_path=str(head))
