"""The canary: a fixed set of prompts by which two pairs of target and draft are compared before traffic pays for it.

DIRECTORY/texts-<what they were written to>.json       answers that everybody is asked within
DIRECTORY/<target>+<draft>-<how>.json                  what a pair's drafts came to, kept for the next comparison
DIRECTORY/serving.json                                 the same of the pair that serves, for the next start of it all,
                                                       with its head, and who has fallen
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from engine.api import DraftKind
from policies.canary import CanaryVerdict, Comparison, Counts, by_position, compare
from specd.alerts.finding import Finding, Pair, Verdict
from specd.config.canary import CanarySection, read_prompts
from specd.config.schema import Config
from specd.errors import UpdateError
from specd.flights import UnservedError
from specd.observers import CANARY
from specd.target.kept import Kept, Served, keep, read, remember
from specd.target.line import Identity, Line
from specd.target.replay import ALONE, AT_LEISURE, BESIDE, Drafts, Manner, replayed, written

log = logging.getLogger(__name__)

_VERDICTS: Final = {
    CanaryVerdict.FINE: Verdict.FINE,
    CanaryVerdict.BAD: Verdict.BREACHED,
    CanaryVerdict.NO_EVIDENCE: Verdict.NO_EVIDENCE,
}
_SERVING: Final = "serving.json"
_UNSAFE: Final = re.compile(r"[^\w.+-]")


@dataclass(frozen=True, slots=True)
class Judged:
    """What the canary says of one proposer."""

    proposer: DraftKind
    before: Pair
    after: Pair
    comparison: Comparison
    positions: tuple[float, ...]
    """Acceptance now, by draft position."""
    alike: bool = True
    """Whether both were asked the same."""

    @property
    def bad(self) -> bool:
        """Whether acceptance fell."""
        return self.comparison.verdict is CanaryVerdict.BAD

    def text(self) -> str:
        """A sentence with the numbers."""
        if not self.alike:
            return (
                f"canary: nothing can be said of {self.proposer}: the prompts, their tokens or canary.k are others "
                "than the pair before was asked with; from now on there is something to compare with"
            )
        return self.comparison.description(f"of {self.proposer}")

    def finding(self) -> Finding:
        """For the alarm."""
        labels = {
            "alertname": "SpecdAcceptanceDrift",
            "severity": "warning",
            "kind": "canary",
            "class": CANARY,
            "proposer": self.proposer,
            "target_revision": self.after.target_revision,
            "draft_revision": self.after.draft_revision,
        }
        before = self.before
        against = f"target {before.target_revision} with draft {before.draft_revision} before"
        return Finding(
            source=CANARY,
            labels=labels,
            verdict=_VERDICTS[self.comparison.verdict],
            annotations={"summary": self.text(), "description": f"{self.text()}; compared with {against}."},
        )

    def document(self) -> dict[str, Any]:
        """For JSON, which has no NaN."""
        found = self.comparison
        numbers = {
            name: None if value != value else round(value, 4)  # noqa: PLR0124  NaN
            for name, value in (
                ("before", found.before),
                ("after", found.after),
                ("change", found.change),
                ("low", found.low),
                ("high", found.high),
                ("p_value", found.p_value),
            )
        }
        return {
            "proposer": self.proposer,
            "verdict": found.verdict.value,
            "target_revision_before": self.before.target_revision,
            "draft_revision_before": self.before.draft_revision,
            **numbers,
            "examined": found.examined,
            "prompts": found.prompts,
            "acceptance_by_position": [None if p != p else round(p, 4) for p in self.positions],  # noqa: PLR0124
        }


class Canary:
    """Replays, and keeps what came of it."""

    def __init__(self, directory: Path, config: Callable[[], Config]) -> None:
        """directory: need not exist."""
        self._directory = directory
        self._config = config
        self._reference: Kept | None = None
        self._known: dict[Pair, Kept] = {}
        self._written: dict[str, list[list[int]]] = {}
        self.last: tuple[Judged, ...] = ()
        """Of the last comparison."""

    @property
    def enabled(self) -> bool:
        """Whether updates are to be checked."""
        return self._settings.enabled

    async def judge(self, serving: Line, line: Line) -> tuple[Judged, ...]:
        """Compare what the drafts of a line that serves nobody yet come to with those of the one that serves, which is
        asked only if it was not asked yet.

        Only proposers that both have can be compared. Raises `UpdateError` where an engine does not answer.
        """
        with _answered():
            self._reference = await self.of(serving, BESIDE)
            new = await self.of(line, ALONE, anew=True)
        return self._conclude(self._reference, new)

    async def judge_serving(self, line: Line) -> tuple[Judged, ...]:
        """Ask the line that serves again, and compare it with the pair that served before it, or before the daemon was
        started, else with what it came to first. Raises as `judge` does.
        """
        with _answered():
            old = self._served_before(line) or await self.of(line, BESIDE)
            new = await self.of(line, BESIDE, anew=True)
        return self._conclude(old, new)

    def remembers_another(self, line: Line) -> bool:
        """Whether another pair served when the daemon ended."""
        return self.enabled and self._served_before(line) is not None

    @property
    def last_head(self) -> Path | None:
        """That drafted when the daemon ended, and was not named by anybody."""
        last = self._last()
        return Path(last.head) if last is not None and last.head else None

    def fallen(self, line: Line) -> frozenset[DraftKind]:
        """Who had fallen when the daemon ended, if this is the pair that served then."""
        last = self._last()
        return frozenset(last.fallen if last is not None and last.pair == self._pair(line) else ())

    def lacks(self, line: Line) -> bool:
        """Whether the next start would have nothing to compare with: not this line, and none before it either."""
        last = self._last()
        return last is None or (last.pair == self._pair(line) and not last.counts)

    async def learn(self, line: Line) -> None:
        """See to it that the next start can be compared with this line, which serves: at leisure, for as long as that
        takes. Raises as `judge` does.
        """
        with _answered():
            await self.of(line, AT_LEISURE)
        self.serves(line)

    def serves(self, line: Line) -> None:
        """This line serves from now on: what is known of it is what the next start goes on with."""
        pair, last = self._pair(line), self._last()
        before = (
            last
            if last is not None and last.pair == pair
            else Kept(pair.target_revision, pair.draft_revision, {})
        )
        known = self._known.get(pair, before)
        served = Served(
            known.target_revision,
            known.draft_revision,
            known.counts,
            known.asked,
            head="" if line.draft.head else str(line.last_head or ""),
            fallen=tuple(sorted(line.fallen)),
        )
        if served != last:
            keep(self._directory / _SERVING, served)

    def _served_before(self, line: Line) -> Kept | None:
        """What the last update, or else the end of the last daemon, left for a comparison."""
        known = self._reference or self._last()
        other = known is not None and known.pair != self._pair(line) and known.counts
        return known if other else None

    def _last(self) -> Served | None:
        """What was written of the pair that served last."""
        found: Served | None = read(self._directory / _SERVING, Served)
        return found

    def _pair(self, line: Line) -> Pair:
        identity = self._identity(line)
        return Pair(identity.target_revision, identity.draft_revision)

    def _conclude(self, old: Kept, new: Kept) -> tuple[Judged, ...]:
        self.last = tuple(self._compared(old, new))
        for each in self.last:
            log.log(logging.WARNING if each.bad else logging.INFO, "%s", each.text())
        return self.last

    async def ask(self, line: Line) -> None:
        """See to it that what this line's drafts come to is known. Raises as `judge` does."""
        with _answered():
            await self.of(line, BESIDE)

    async def of(self, line: Line, manner: Manner, *, anew: bool = False) -> Kept:
        """What a line's drafts come to, asked now if nobody has asked yet, or `anew`. Raises `UnservedError`."""
        settings, identity = self._settings, self._identity(line)
        texts = await self._texts(line, manner)
        asked = _digest(self._prompts, texts, settings.k)
        file = self._file(identity, asked)
        kept: Kept | None = None if anew else self._known.get(self._pair(line)) or read(file, Kept)
        if kept is not None and kept.asked != asked:
            kept = None
        if kept is None:
            counts = await self._replay(line, texts, settings, manner)
            kept = Kept(identity.target_revision, identity.draft_revision, counts, asked)
            keep(file, kept)
        remember(self._known, kept.pair, kept)
        return kept

    async def _replay(
        self, line: Line, texts: list[list[int]], settings: CanarySection, manner: Manner
    ) -> dict[DraftKind, list[Counts]]:
        counts: dict[DraftKind, list[Counts]] = {}
        for proposer in line.proposers:
            counts[proposer] = await replayed(
                line, self._prompts, texts, Drafts(proposer, settings.k), manner
            )
        return counts

    async def _texts(self, line: Line, manner: Manner) -> list[list[int]]:
        """Of the first line that was ever asked with these prompts and this tokenizer."""
        settings, prompts = self._settings, self._prompts
        tokenizer = (await line.model()).encoder.digest
        file = self._directory / f"texts-{_digest(prompts, settings.tokens, tokenizer)}.json"
        known: list[list[int]] | None = self._written.get(file.name) or read(file, list[list[int]])
        if known is None or len(known) != len(prompts):
            known = await written(line, prompts, settings.tokens, manner)
            keep(file, known)
        remember(self._written, file.name, known)
        return known

    def _compared(self, old: Kept, new: Kept) -> list[Judged]:
        """Of those who drafted in both."""
        settings, alike = self._settings, old.asked == new.asked
        return [
            Judged(
                proposer,
                old.pair,
                new.pair,
                compare(
                    old.counts[proposer] if alike else (),
                    counts if alike else (),
                    confidence=settings.confidence,
                    tolerance=settings.tolerance,
                ),
                by_position(counts),
                alike,
            )
            for proposer, counts in new.counts.items()
            if proposer in old.counts
        ]

    def _file(self, identity: Identity, asked: str) -> Path:
        pair = _UNSAFE.sub("_", f"{identity.target_revision}+{identity.draft_revision}")[:120]
        return self._directory / f"{pair}-{_digest(identity, asked)}.json"

    def _identity(self, line: Line) -> Identity:
        identity = line.identity(self._config())
        assert identity is not None, "a line whose files have been read"
        return identity

    @property
    def _settings(self) -> CanarySection:
        return self._config().canary

    @property
    def _prompts(self) -> tuple[str, ...]:
        return self._settings.texts or shipped_prompts()


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except UnservedError as unserved:
        raise UpdateError(f"the canary was not answered: {unserved.refusal.message}") from None


def shipped_prompts() -> tuple[str, ...]:
    """The set in the package."""
    with resources.as_file(resources.files("specd.target") / "prompts.jsonl") as file:
        return read_prompts(file)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
