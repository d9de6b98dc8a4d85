"""Recorded request reports, put before the drift detectors and the alert rules as if they came in now."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from policies.drift import Shown, Watch
from specd.alerts.events import Events
from specd.alerts.finding import Finding, Pair, pair_of
from specd.alerts.lifecycle import Alert, Lifecycle, State
from specd.alerts.receivers.base import rfc3339
from specd.alerts.rules import Evidence, Stratum, evaluate
from specd.alerts.signals import findings
from specd.alerts.silences import Silence, Silences
from specd.alerts.telling import Listener, Muting, Told, firing_notices, resolved_notices
from specd.config.schema import Config
from specd.errors import UserError

_INTERVAL: Final = 1.0
_MOST_LOOKS: Final = 60  # between two records, however far apart they are
_UPDATE: Final = "target_update"
_READER: Final = Listener("replay", repeat_seconds=0.0, send_resolved=True)


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """What one proposer's drafts came to."""

    proposer: str
    examined: tuple[int, ...]
    accepted: tuple[int, ...]
    expected: tuple[float, ...] = ()


class Report(Drafted, frozen=True, kw_only=True):
    """A line of a finished request."""

    t: float
    traffic_class: str = msgspec.field(name="class")
    temperature: float = 0.0
    target_revision: str = ""
    draft_revision: str = ""
    tokens: int = 0
    also: tuple[Drafted, ...] = ()

    @property
    def pair(self) -> Pair:
        """Who served it."""
        return Pair(self.target_revision, self.draft_revision)

    def shown(self) -> Iterator[Shown]:
        """What each proposer showed."""
        for drafted in (self, *self.also):
            yield Shown(
                t=self.t,
                traffic_class=self.traffic_class,
                temperature=self.temperature,
                target_revision=self.target_revision,
                draft_revision=self.draft_revision,
                proposer=drafted.proposer,
                examined=drafted.examined,
                accepted=drafted.accepted,
                tokens=self.tokens,
                expected=drafted.expected,
            )


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A line that marks an update."""

    t: float
    target_revision: str
    draft_revision: str = ""


Record = Report | Update


def read_reports(path: Path) -> list[Record]:
    """In the order of the file. Raises `UserError`, which names the line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    records = [_at(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not records:
        raise UserError(f"{path} has no reports: it needs a JSON object a line, see docs/drift.md.")
    return records


def _at(path: Path, number: int, line: str) -> Record:
    try:
        return _record(json.loads(line))
    except ValueError as error:
        raise UserError(f"{path}:{number}: {error}.") from error


def _record(line: Any) -> Record:
    event = line.get("event") if isinstance(line, dict) else None
    if event not in {None, _UPDATE}:
        raise ValueError(f'there is no event "{event}", only "{_UPDATE}"')
    record: Record = msgspec.convert(line, Report) if event is None else msgspec.convert(line, Update)
    if not isfinite(record.t):
        raise ValueError("t is no time: write Unix seconds")
    for drafted in (record, *record.also) if isinstance(record, Report) else ():
        _check(drafted)
    return record


def _check(drafted: Drafted) -> None:
    examined, accepted = drafted.examined, drafted.accepted
    if len(examined) != len(accepted) or any(
        not 0 <= kept <= seen for seen, kept in zip(examined, accepted, strict=True)
    ):
        raise ValueError(
            "accepted must have as many positions as examined, and none with more than was examined"
        )
    if drafted.expected and len(drafted.expected) != len(examined):
        raise ValueError("expected must have as many positions as examined, or be left out")


class Replay:
    """Detectors, rules, lifecycle, and what mutes an alert, on the time of the records."""

    def __init__(self, config: Config, silences: Iterable[Silence] = ()) -> None:
        self._config = config
        self._watch = Watch(config.drift.settings())
        rules = config.alerts.rules
        self._evidence = Evidence(max((rule.window_seconds for rule in rules), default=0.0))
        self._events = Events()
        self._lifecycle = Lifecycle(self._context)
        self._told: Told = {}
        muted = Silences()
        muted.restore(silences)
        grace = config.alerts.update_grace_seconds
        self._muting = Muting(muted, self._events, self._lifecycle.all, grace_seconds=grace)
        self._pair = Pair("", "")
        self._known: set[Pair] = set()
        self._target = ""
        """That an update has named, and of which no request was seen yet."""

    def run(self, records: Sequence[Record], shift: float) -> Iterator[dict[str, Any]]:
        """What receivers would be told: alerts that fire or end. shift: seconds that are added to the records' times,
        which never go back.
        """
        now = looked = records[0].t
        for record in records:
            now = max(now, record.t)
            for at in _looks(looked, now):
                yield from self._tell(self._look(at), at, shift)
                looked = at
            yield from self._tell(self._take(record, now), now, shift)
        yield from self._tell(self._look(now), now, shift)

    def _take(self, record: Record, now: float) -> list[Alert]:
        if isinstance(record, Update):
            return self._updated(record, now)
        ended: list[Alert] = []
        if record.pair not in self._known or record.target_revision == self._target:
            ended = self._serve(record.pair, now)
        if record.pair == self._pair:
            for shown in record.shown():
                self._watch.observe(replace(shown, t=now))
                self._count(shown, now)
        return ended

    def _updated(self, update: Update, now: float) -> list[Alert]:
        self._events.note(_UPDATE, f"to {update.target_revision}", now)
        if update.draft_revision:
            return self._serve(Pair(update.target_revision, update.draft_revision), now)
        self._target = update.target_revision
        return []

    def _serve(self, pair: Pair, now: float) -> list[Alert]:
        """This pair is served from now on; requests of an earlier one that still end say nothing of it."""
        if pair.target_revision not in {self._pair.target_revision, self._target} and self._known:
            self._events.note(_UPDATE, f"to {pair.target_revision}", now)
        self._target = ""
        self._known.add(pair)
        if pair == self._pair:
            return []
        self._pair = pair
        self._watch.serve(pair.target_revision, pair.draft_revision)
        self._evidence.clear()
        return self._lifecycle.end(self._of_another_pair, now)

    def _count(self, shown: Shown, now: float) -> None:
        if sum(shown.examined):
            stratum = Stratum(shown.traffic_class, shown.proposer)
            self._evidence.add(stratum, shown.examined[0], shown.accepted[0], now)

    def _look(self, now: float) -> list[Alert]:
        return self._lifecycle.step(self._findings(now), now)

    def _findings(self, now: float) -> Iterable[Finding]:
        yield from evaluate(self._config.alerts.rules, self._evidence, self._pair, now, self._watch.baseline)
        yield from findings(self._watch.signals(now), self._config.drift.severity)

    def _context(self, finding: Finding, now: float) -> dict[str, str]:
        return {"suspected_cause": self._events.suspect(now if finding.since is None else finding.since)}

    def _of_another_pair(self, alert: Alert) -> str | None:
        return None if pair_of(alert.labels) in {None, self._pair} else "another pair of revisions is served"

    def _tell(self, changed: Iterable[Alert], now: float, shift: float) -> Iterator[dict[str, Any]]:
        """What is news to a receiver that wants to know of every end."""
        over = [alert for alert in changed if alert.state is State.RESOLVED]
        for ended in resolved_notices(over, [_READER], self._told):
            yield _as_json(ended.alert, shift)
        by_key = {one.alert.fingerprint: one for one in self._lifecycle.all()}
        mute = lambda one: self._muting.why(one, now)  # noqa: E731
        for news in firing_notices(by_key.values(), [_READER], self._told, mute, now):
            yield _as_json(self._muting.not_recovered(by_key[news.alert.fingerprint]), shift)


def _as_json(alert: Alert, shift: float) -> dict[str, Any]:
    return {
        "name": alert.name,
        "state": alert.state.value,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at + shift),
        "endsAt": None if alert.ends_at is None else rfc3339(alert.ends_at + shift),
        "fingerprint": alert.fingerprint,
    }


def _looks(last: float, now: float) -> Iterator[float]:
    """When to look between two records: once a second, or evenly where that would be too often."""
    count = min(int((now - last) // _INTERVAL), _MOST_LOOKS)
    for number in range(1, count + 1):
        yield last + (now - last) * number / count
