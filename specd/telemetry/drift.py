"""The drift detectors in the daemon: fed by finished requests, asked by alarm and scrape, kept over restarts."""

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from policies.drift import Baseline, Shown, Signal, Stratum, Verdict, Watch
from policies.drift.losing import Losing
from specd.alerts.finding import Finding, Pair
from specd.alerts.signals import OWN, About, findings, losses
from specd.config.drift import DriftSection
from specd.tasks import ended
from specd.telemetry.families import gauges
from specd.telemetry.finished import Finished
from specd.threads import in_thread

log: Final = logging.getLogger(__name__)

_FILE: Final = "drift.state"
_SAVE_EVERY: Final = 60.0


class Drift(Collector):
    """Owner of the watch and of its file, in which what speculation loses has a place, too."""

    def __init__(
        self,
        section: DriftSection,
        directory: Path,
        clock: Callable[[], float] = time.time,
        *,
        losing: Losing | None = None,
    ) -> None:
        """A file that cannot be read is told of, and baselines are learned anew. losing: fed by whoever sees steps."""
        self._losing = losing or Losing()
        self._seen = (0, 0)
        """Of what is lost: what was new, and what was wrong, when it was looked at last."""
        self._section = section
        self._file = directory / _FILE
        self._clock = clock
        self._watch = Watch(section.settings())
        self._dirty = False
        self._due = asyncio.Event()
        """What began or ended must not be forgotten: an alert that outlives a crash would be taken for over."""
        self._fault: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._restore()

    def configure(self, section: DriftSection) -> None:
        """Judge by these settings from now on."""
        self._section = section
        self._watch.configure(section.settings())

    def set_identity(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on."""
        self._watch.serve(target_revision, draft_revision)
        self._losing.serve(target_revision, draft_revision)

    def finished(self, request: Finished) -> None:
        """Take in what it showed."""
        for shown in request.shown():
            self.observe(shown)

    def observe(self, shown: Shown) -> None:
        """Take in a piece of evidence."""
        before = self._watch.breaches
        self._watch.observe(shown)
        self._dirty = True
        if self._watch.breaches != before:
            self._due.set()

    def findings(self, now: float, about: About = OWN) -> list[Finding]:
        """For the alarm."""
        return findings(self._watch.signals(now), self._section.severity, about)

    def losses(self, now: float, pair: Pair) -> list[Finding]:
        """For the alarm: whether drafting costs more than it brings."""
        seen = (self._losing.news, self._losing.breaches)
        self._dirty = self._dirty or seen[0] != self._seen[0]
        if seen[1] != self._seen[1]:
            self._due.set()
        self._seen = seen
        stale = self._section.stale_seconds
        return losses(self._losing.all(), pair, self._section.severity, now=now, stale_seconds=stale)

    def baseline(self, traffic_class: str, proposer: str) -> Baseline | None:
        """See `Watch.baseline`."""
        return self._watch.baseline(traffic_class, proposer)

    def accept(self, wanted: Callable[[Stratum], bool]) -> list[Stratum]:
        """What strata that are wanted show now is meant to be so: see `Watch.accept`."""
        found = self._watch.accept(wanted)
        self._dirty = True
        self._due.set()
        return found

    def snapshot(self) -> list[dict[str, Any]]:
        """For people: every stratum, with its baseline and how it stands; None for what is not known."""
        return [_as_json(signals) for signals in self._watch.by_stratum(self._clock())]

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield gauges(
            "specd_acceptance_baseline",
            "Acceptance of the first drafted token that requests are compared with; NaN until it is learned.",
            ("class",),
            [((name,), value) for name, value in self._watch.baselines().items()],
        )
        yield gauges(
            "specd_drift_score",
            "Evidence that acceptance fell, of the class's worst stratum: 1 is enough; NaN while there is none.",
            ("class",),
            [((name,), value) for name, value in self._watch.scores(self._clock()).items()],
        )

    def start(self) -> None:
        """Save once a minute, and when something began or ended, until `aclose`."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Save what is new."""
        await ended(self._task)
        await self.save()

    async def save(self) -> None:
        """Write the state where it has changed. A full disk is told of once; the detectors go on."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            await in_thread(_write, self._file, {**self._watch.saved(), "losing": self._losing.saved()})
        except OSError as error:
            if self._fault is None:
                log.error("what the drift detectors know would not survive a restart: %s", error)  # noqa: TRY400
            self._fault, self._dirty = str(error), True
        else:
            self._fault = None

    def _restore(self) -> None:
        try:
            saved = msgspec.msgpack.decode(zlib.decompress(self._file.read_bytes()))
            self._watch.restore(saved)
            if "losing" in saved:
                self._losing.restore(saved["losing"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, zlib.error) as error:  # msgspec's errors are ValueErrors
            log.warning("baselines are learned anew, since %s cannot be used: %s", self._file, error)
            self._watch = Watch(self._section.settings())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), _SAVE_EVERY)
            self._due.clear()
            await self.save()


def _write(file: Path, saved: dict[str, Any]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(zlib.compress(msgspec.msgpack.encode(saved), 1))
    new.replace(file)


def _as_json(signals: Sequence[Signal]) -> dict[str, Any]:
    """Of one stratum."""
    stratum, any_of_it = signals[0].stratum, signals[0]
    wrong = [signal.kind.value for signal in signals if signal.verdict is Verdict.BREACHED]
    silent = any_of_it.verdict is Verdict.NO_EVIDENCE
    return {
        **stratum._asdict(),
        "requests": any_of_it.requests_before,
        "baseline": _number(any_of_it.before),
        "now": _number(any_of_it.now),
        "score": None if silent else _number(any_of_it.score),
        "wrong": wrong,
    }


def _number(value: float) -> float | None:
    return None if isnan(value) else round(value, 4)
