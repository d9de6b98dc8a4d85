"""The policies that are compared on one engine: the adaptive one, every static k, and k = 0."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Final

from benchmarks.steady import Ask, Shown, in_batches, steady, together
from engine.api import DraftSettings, Launch
from engine.core import Engine
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

    def shown(self, name: str, prompts: Sequence[Ask], running: int, tokens: int) -> Shown:
        """What it gives to so many of these prompts at a time, one batch after another."""
        policy = self.policy(name)
        return together(steady(self.engine, policy, batch, tokens) for batch in in_batches(prompts, running))


def engine(path: Path, draft: DraftSettings) -> Engine:
    """An engine that keeps no prefix: every prompt is read anew."""
    launch = Launch(
        model_path=str(path),
        cache_dir=str(cache_dir() / "kernels"),
        draft=draft,
        prefix_cache=False,
    )
    return start(launch, lambda _: None)


def automatic(path: Path) -> DraftSettings:
    """Who drafts for this target where nobody says who."""
    head = shipped_head(path, hashes())
    if head is None:
        return DraftSettings(kinds=("ngram",))
    return DraftSettings(kinds=("ngram", "eagle"), head_path=str(head))
