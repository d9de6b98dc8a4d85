"""All engines that are looked at: started and ended as the config says, and wired to alarm, scrape and status."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.alerts.finding import OBSERVED, Finding
from specd.alerts.manager import AlertManager
from specd.config.observe import ObserveSection
from specd.config.reload import redacted
from specd.config.schema import Config
from specd.errors import UserError
from specd.observe.findings import canary, evidence, findings
from specd.observe.observer import Observer
from specd.observe.target import Same
from specd.telemetry.families import counter, gauges

log: Final = logging.getLogger(__name__)

_HOT: Final = frozenset(
    {
        "every_seconds",
        "timeout_seconds",
        "down_seconds",
        "canary_seconds",
        "canary_patience_seconds",
        "learn_reports",
        "report_requests",
        "report_drafts",
        "severity",
    }
)
"""Keys whose change does not make it another engine."""


class Observing(Collector):
    """Owner of the observers."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        alerts: AlertManager,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """directory: where what is known outlives the daemon, of each engine in a directory of its name."""
        self._config = config
        self._directory = directory
        self._alerts = alerts
        self._clock = clock
        self._observers: dict[str, Observer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        alerts.watch(self._findings)

    def start(self) -> None:
        """Begin to look, until `aclose`."""
        self.configure(self._config)

    def configure(self, config: Config) -> None:
        """Look at these from now on. Needs a running event loop."""
        self._config = config
        wanted = {section.name: section for section in config.observe}
        for name in list(self._observers):
            old = self._observers[name]
            if name not in wanted or not _same(old.section, wanted[name]):
                self._end(name)
            else:
                old.configure(wanted[name], config)
        for name, section in wanted.items():
            if name not in self._observers:
                self._begin(section)
        self._spawn(
            self._over(lambda labels: None if labels[OBSERVED] in wanted else "it is not observed any more")
        )

    async def aclose(self) -> None:
        """Stop, and write what is known."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(observer.aclose() for observer in self._observers.values()))

    def accept(self, name: str) -> dict[str, Any]:
        """What answers there now is meant to, and so is what is accepted of its drafts. Raises `UserError`."""
        observer = self._named(name)
        changed = observer.target.same is Same.NO
        if changed:
            observer.accept()
        if not observer.drift.accept(lambda _: True) and not changed:
            raise UserError(
                f"there is nothing to accept: neither the target at {name} nor its acceptance changed"
            )
        self._spawn(self._over(lambda labels: _accepted(labels, name)))
        return _shown(observer)

    def ask(self, name: str) -> dict[str, Any]:
        """Replay the canary there. Raises `UserError`."""
        observer = self._named(name)
        observer.ask()
        return _shown(observer)

    def snapshot(self) -> list[dict[str, Any]]:
        """For people: all that is known of each."""
        return [_shown(observer) for observer in self._observers.values()]

    def overview(self) -> list[dict[str, Any]]:
        """For people: how each stands."""
        return [_glance(observer) for observer in self._observers.values()]

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        found = list(self._observers.items())
        yield _gauge(
            "up",
            "Whether the last look at an engine that is observed found it.",
            found,
            lambda o: o.fault is None,
        )
        yield _gauge(
            "target_changed",
            "Whether another target answers there than the known one; NaN until that is known.",
            found,
            lambda o: _CHANGED[o.target.same],
        )
        yield _gauge(
            "acceptance",
            "Of the first drafted token in the last report, or of all of them where positions are not told.",
            found,
            _acceptance,
        )
        yield _gauge(
            "canary_timestamp_seconds",
            "When the last canary was answered; NaN before the first.",
            found,
            lambda o: o.asked_at,
        )
        yield gauges(
            "specd_observe_target_info",
            "Which engine and which target answers.",
            ("engine", "kind", "revision"),
            [((name, o.kind or "unknown", o.target.revision), 1) for name, o in found],
        )
        yield counter(
            "specd_observe_looks_total",
            "Looks at an engine, by what they came to.",
            ("engine", "outcome"),
            [((name, outcome), n) for name, o in found for outcome, n in o.outcomes.items()],
        )
        for total, text in _TOTALS.items():
            yield counter(
                f"specd_observe_{total}_total",
                text,
                ("engine",),
                [((name,), o.totals[total]) for name, o in found],
            )

    def _findings(self, now: float) -> list[Finding]:
        return [finding for observer in self._observers.values() for finding in findings(observer, now)]

    def _begin(self, section: ObserveSection) -> None:
        observer = Observer(
            section,
            self._directory / section.name,
            lambda: self._config,
            judged=self._judged,
            clock=self._clock,
        )
        self._observers[section.name] = observer
        observer.start()
        log.info("%s at %s is observed", section.name, redacted(section.url))

    def _end(self, name: str) -> None:
        self._spawn(self._observers.pop(name).aclose())

    def _judged(self, observer: Observer) -> None:
        """What is known of its target has changed: alerts about another end, and the canary's begins."""
        name, (revision, _) = observer.section.name, observer.pair
        self._spawn(
            self._over(
                lambda labels: (
                    "another target answers there"
                    if labels[OBSERVED] == name and labels.get("target_revision", revision) != revision
                    else None
                )
            )
        )
        found = canary(observer)
        if found is not None:
            self._spawn(self._judge(found))

    async def _judge(self, finding: Finding) -> None:
        await self._alerts.judge([finding])

    async def _over(self, why: Callable[[Mapping[str, str]], str | None]) -> None:
        """End alerts about engines that are observed, those for which there is a clause."""
        await self._alerts.end(lambda alert: why(alert.labels) if OBSERVED in alert.labels else None)

    def _named(self, name: str) -> Observer:
        if name not in self._observers:
            names = ", ".join(self._observers) or "none"
            raise UserError(f"no engine of the name {name} is observed: there are {names}")
        return self._observers[name]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_CHANGED: Final = {Same.YES: 0.0, Same.NO: 1.0, Same.UNKNOWN: nan}
_TOTALS: Final = {
    "reports": "Reports of traffic that drift was looked for in.",
    "drafts": "Rounds in which an engine that is observed drafted, as far as they are evidence.",
    "drafted_tokens": "Tokens drafted in them, where the engine tells.",
    "accepted_tokens": "Drafted tokens that were accepted in them.",
}


def _accepted(labels: Mapping[str, str], name: str) -> str | None:
    """Why an alert ends, if it is about how this engine has left what it was."""
    mine = labels[OBSERVED] == name and labels.get("kind") in {"step", "decay", "loop", "canary"}
    return "what acceptance is now was accepted by hand" if mine else None


def _gauge(
    name: str, text: str, observers: Sequence[tuple[str, Observer]], value: Callable[[Observer], float]
) -> Metric:
    return gauges(f"specd_observe_{name}", text, ("engine",), [((key,), value(o)) for key, o in observers])


def _same(old: ObserveSection, new: ObserveSection) -> bool:
    """Whether they lead to the same engine in the same way."""
    return old.model_dump(exclude=set(_HOT)) == new.model_dump(exclude=set(_HOT))


def _acceptance(observer: Observer) -> float:
    report = observer.last_report
    if report is None or not report.examined[0]:
        return nan
    return report.accepted[0] / report.examined[0]


def _glance(observer: Observer) -> dict[str, Any]:
    """JSON has no NaN."""
    acceptance = _acceptance(observer)
    return {
        "name": observer.section.name,
        "url": redacted(observer.section.url),
        "kind": observer.kind,
        "fault": observer.fault,
        "speculates": observer.speculates,
        "target_revision": observer.target.revision,
        "same_target": observer.target.same.value,
        "acceptance": None if isnan(acceptance) else round(acceptance, 4),
        "reports": observer.totals["reports"],
    }


def _shown(observer: Observer) -> dict[str, Any]:
    target, said = observer.target, canary(observer)
    return {
        **_glance(observer),
        "model": None if target.now is None else target.now.model,
        "says": None if target.now is None else {**target.now.target, **target.now.program},
        "evidence": evidence(observer),
        "measure": None if observer.last_report is None else observer.last_report.measure,
        "canary": None if said is None else said.annotations["summary"],
        "canary_fault": observer.canary_fault,
        "canary_unix_time": None if isnan(observer.asked_at) else observer.asked_at,
        "looks": dict(observer.outcomes),
        "drift": observer.drift.snapshot(),
    }
