"""One engine that is looked at: what it counts, what it serves, and what it answers."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf, isnan, nan
from pathlib import Path
from typing import Final

import msgspec

from policies.drift import Shown
from policies.observed import Counters, Gathering, Interval, Look, Report, interval
from specd.config.drift import DriftSection
from specd.config.observe import ObservedKind, ObserveSection
from specd.config.schema import Config
from specd.models.cache import write_json
from specd.observe.engines import counters, kind_of
from specd.observe.errors import ObserveError
from specd.observe.identity import identify
from specd.observe.peer import Peer
from specd.observe.replay import Asker, Question
from specd.observe.scrape import Page
from specd.observe.target import Known, Target
from specd.target.canary import shipped_prompts
from specd.tasks import ended
from specd.telemetry.drift import Drift

log: Final = logging.getLogger(__name__)

FAILED: Final = "failed"
"""The outcome of a look at nothing."""
OWN: Final = "canary"
"""Of one that has the canary's own requests in it."""
OUTCOMES: Final = (*(look.value for look in Look), FAILED, OWN)

_FILE: Final = "target.json"
_DRAFT: Final = "unknown"
_STALE: Final = 3600.0
"""Seconds for which a report is news at least: quiet engines take long for one."""
_AGAIN: Final = 30.0


class Observer:
    """Looks, asks, and keeps what it has learned. What is to be made of it is for others to say."""

    def __init__(
        self,
        section: ObserveSection,
        directory: Path,
        config: Callable[[], Config],
        *,
        judged: Callable[["Observer"], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """directory: of this engine alone. judged: called when a canary has been answered, or another target was met.
        clock: gives Unix seconds.
        """
        self.section = section
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.totals: Counter[str] = Counter()
        """Drafts, tokens drafted and accepted, reports: since the daemon was started, whatever restarted there."""
        self.kind: ObservedKind | None = None
        self.speculates = False
        self.last_report: Report | None = None
        self.fault: str | None = "it has not been looked at yet"
        self.canary_fault: str | None = None
        """Why the last canary was not answered."""
        self.asked_at = nan
        """Unix seconds of the last canary that was answered."""
        self._directory = directory
        self._config = config
        self._judged = judged
        self._clock = clock
        self._seen_at = clock()
        self._next_canary = self._try_at = clock()
        self._before: Counters | None = None
        self._gathering = Gathering(
            least_requests=section.report_requests, least_drafts=section.report_drafts
        )
        self.drift = Drift(self._drift_section(config()), directory, clock)
        self.target = Target(_read(directory / _FILE))
        self._wanted = asyncio.Event()
        self._peer: Peer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def down_for(self) -> float:
        """Seconds since it answered last, or since it is watched; 0 while it answers."""
        return 0.0 if self.fault is None else max(self._clock() - self._seen_at, 0.0)

    @property
    def pair(self) -> tuple[str, str]:
        """Revisions, as far as they can be had."""
        return self.target.revision, _DRAFT

    def configure(self, section: ObserveSection, config: Config) -> None:
        """Go on by these settings, which lead to the same engine."""
        self.section = section
        if self._peer is not None:
            self._peer.section = section
        self._gathering.least_requests = section.report_requests
        self._gathering.least_drafts = section.report_drafts
        self.drift.configure(self._drift_section(config))

    def ask(self) -> None:
        """Replay the canary now."""
        self._next_canary = self._try_at = self._clock()
        self._wanted.set()

    def accept(self) -> None:
        """What answers now is meant to."""
        self.target.accept()
        self._settle()

    def start(self) -> None:
        """Begin to look, until `aclose`."""
        self.drift.start()
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop, and write what is known."""
        await ended(self._task)
        await self.drift.aclose()
        if self._peer is not None:
            await self._peer.aclose()

    async def _run(self) -> None:
        while True:
            await _tried(self.look, self._failed)
            if self.fault is None and self._canary_is_due():
                await _tried(self.replay, self._unanswered)
            try:
                await asyncio.wait_for(self._wanted.wait(), self.section.every_seconds)
            except TimeoutError:
                continue
            self._wanted.clear()

    async def look(self) -> None:
        """At its counters, and at what it serves. Raises `ObserveError`."""
        now = await self._counters()
        found = Interval(Look.IDLE) if now is None else interval(self._before, now)
        unsure = self.fault is not None or not self.target.met or found.look is Look.RESTARTED
        if unsure or now is None:  # without counters nothing else would show that it is there
            await self._identify()
        if self.fault is not None and self.outcomes[FAILED]:
            log.warning("%s answers again", self.section.name)
        self.fault, self._seen_at, self._before = None, self._clock(), now
        self._take(found)

    async def replay(self) -> None:
        """Ask the canary's prompts. Raises `ObserveError`."""
        config = self._config()
        prompts = config.canary.texts or shipped_prompts()
        assert self.kind is not None, "it was looked at"
        assert self.target.now is not None, "as above"
        question = Question(self.kind, self.target.now.model, prompts, config.canary.tokens)
        self._try_at = self._clock() + self._pause
        asker = Asker(self._the_peer(), question, self._counters, self.section.canary_patience_seconds)
        found = await asker.replay()
        await self._identify()  # it may have been swapped meanwhile
        self._before = await self._counters()  # its own requests are no traffic
        self.target.replayed(found, config.canary)
        self.outcomes[OWN] += 1
        self.canary_fault = None
        self.asked_at = self._try_at = self._clock()
        self._next_canary = self.asked_at + (self.section.canary_seconds or inf)
        self._settle()

    def _canary_is_due(self) -> bool:
        now = self._clock()
        return now >= self._try_at and (self.target.wanted or now >= self._next_canary)

    async def _counters(self) -> Counters | None:
        """None where it counts no drafts."""
        if self._kind_without_metrics():
            return None
        page = Page.read(await self._the_peer().metrics())
        self.kind = kind_of(page) if self.section.kind == "auto" else self.section.kind
        found = counters(self.kind, page)
        self.speculates = found is not None
        return found

    def _kind_without_metrics(self) -> bool:
        if self.section.kind != "transformers":
            return False
        self.kind = "transformers"
        return True

    async def _identify(self) -> None:
        assert self.kind is not None, "its metrics were read"
        identity = await identify(self._the_peer(), self.kind, self.section.model)
        before = self.target.now
        self.target.identified(identity)
        if before is None or before.target != identity.target:
            self._settle()

    def _take(self, found: Interval) -> None:
        """What came since the look before."""
        self.outcomes[found.look.value] += 1
        if found.look is Look.RESTARTED:
            log.warning("%s was restarted: what it serves is asked of it", self.section.name)
            self._doubt()
        if found.came is None:
            return
        self.totals.update(drafts=round(found.came.drafts), accepted_tokens=round(found.came.accepted))
        if not isnan(found.came.drafted):
            self.totals.update(drafted_tokens=round(found.came.drafted))
        report = self._gathering.add(found.came, self._clock())
        if report is not None:
            self._report(report)

    def _report(self, report: Report) -> None:
        self.last_report = report
        self.totals.update(reports=1)
        target, draft = self.pair
        self.drift.observe(
            Shown(
                t=report.t,
                traffic_class=self.section.name,
                temperature=nan,
                target_revision=target,
                draft_revision=draft,
                proposer=report.measure,
                examined=report.examined,
                accepted=report.accepted,
                tokens=report.tokens,
            )
        )

    def _failed(self, why: str) -> None:
        if self.fault != why:
            log.warning("%s cannot be observed: %s", self.section.name, why)
        self.fault = why
        self.outcomes[FAILED] += 1
        if self._before is None or isnan(self._before.started):
            self._before = None  # what answers next may be another process, and nothing would tell
            self._doubt()

    def _unanswered(self, why: str) -> None:
        if self.canary_fault != why:
            log.warning("the canary is not answered by %s: %s", self.section.name, why)
        self.canary_fault = why

    def _doubt(self) -> None:
        self.target.doubt()
        self._gathering.forget()
        asked = -inf if isnan(self.asked_at) else self.asked_at
        self._try_at = max(self._clock(), asked + self._pause)

    @property
    def _pause(self) -> float:
        """Seconds between two canaries, whatever is doubted meanwhile, and until one that failed is tried again."""
        return min(self.section.canary_seconds or _AGAIN, _AGAIN)

    def _settle(self) -> None:
        """What is known of the target has changed."""
        self.drift.set_identity(*self.pair)
        self._keep()
        self._judged(self)

    def _keep(self) -> None:
        """What cannot be kept costs a replay later, and is said."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_json(self._directory / _FILE, self.target.known)
        except OSError as error:
            log.warning("what is known of %s is not kept: %s", self.section.name, error)

    def _drift_section(self, config: Config) -> DriftSection:
        """Its unit is the report, and a quiet engine takes long for one."""
        own = {
            "learn_requests": self.section.learn_reports,
            "severity": self.section.severity,
            "stale_seconds": max(config.drift.stale_seconds, _STALE),
        }
        return config.drift.model_copy(update=own)

    def _the_peer(self) -> Peer:
        if self._peer is None:
            self._peer = Peer(self.section)
        return self._peer


async def _tried(act: Callable[[], Awaitable[None]], failed: Callable[[str], None]) -> None:
    try:
        await act()
    except ObserveError as error:
        failed(str(error))
    except Exception as error:
        log.exception("an engine could not be observed")
        failed(f"a fault of specd's: {type(error).__name__}")


def _read(file: Path) -> Known | None:
    """None where there is nothing that can be read: then it is met anew."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Known)
    except (OSError, msgspec.MsgspecError):
        return None
