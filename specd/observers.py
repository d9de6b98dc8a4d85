"""Who listens to the engine: metrics, the alarm, and a ledger of what happened lately."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from engine.api import Idle, KVUsage, Ready, Request, Round, StepReport
from policies.base import LoadState
from policies.cost_error import CostError
from specd.alerts.manager import AlertManager
from specd.restarts import Death
from specd.telemetry.goodput import Goodput
from specd.telemetry.prometheus import Metrics
from specd.telemetry.tally import PooledAcceptance, Rate, evidence_of

CANARY: Final = "canary"
"""How the ids of the daemon's own requests begin, by which they are told from traffic, and their class and tenant."""

_REMEMBERED: Final = 500


class Telemetry:
    """Passes on to metrics and alarm."""

    def __init__(
        self,
        metrics: Metrics,
        alerts: AlertManager,
        met: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """met: called where an engine of others is there, which tells itself who drafts in it."""
        self._metrics = metrics
        self._alerts = alerts
        self._met = met
        self._clock = clock
        self._foreign = False

    def ready(self, ready: Ready) -> None:
        """Which pair of revisions it is, the daemon knows, but for what others run."""
        self._foreign = ready.foreign
        if ready.foreign:
            self._met()

    def submitted(self, request: Request, admitted: float) -> None:
        """Times count from admission: a client's wait begins there."""
        self._metrics.request_started(request.id, admitted)

    def step(self, report: StepReport) -> None:
        """Count it."""
        self._metrics.observe_step(report, self._clock())
        self._alerts.observe(report)

    def idle(self, idle: Idle) -> None:
        """Nothing runs."""
        self._metrics.observe_idle(idle)

    def died(self, death: Death) -> None:
        """Count it by reason."""
        self._metrics.engine_restarted(death.reason)
        self._alerts.engine_died(death.text, foreign=self._foreign)


class _Remembered(NamedTuple):
    """A round, and the step that it was part of."""

    step: int
    load_state: LoadState
    round: Round


class Ledger:
    """For status and decisions: how things stand, and the last rounds with their reasons."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self.waiting = 0
        self.load_state = LoadState.FULL
        self.kv: KVUsage | None = None
        self._cost_errors: tuple[CostError, ...] = ()
        self.goodput = Goodput()
        self._clock = clock
        self._tokens = Rate()
        self._rounds: deque[_Remembered] = deque(maxlen=_REMEMBERED)
        self._classes: dict[str, PooledAcceptance] = defaultdict(PooledAcceptance)

    def ready(self, _: Ready) -> None:
        """A new engine runs nothing yet."""
        self.running = self.waiting = 0

    def submitted(self, request: Request, admitted: float) -> None:
        """The next step tells."""

    def step(self, report: StepReport) -> None:
        """Note how things stand."""
        self.running, self.waiting = report.running, report.waiting
        self.load_state, self.kv = report.load_state, report.kv
        self._cost_errors = report.cost_errors or self._cost_errors
        self.goodput.add(report)
        self._tokens.add(report.committed, self._clock())
        for one in report.rounds:
            self._rounds.append(_Remembered(report.step, report.load_state, one))
            self._classes[one.traffic_class]  # known from its first round on
        for (traffic_class, proposer), seen in evidence_of(report.rounds).items():
            self._classes[traffic_class].add(proposer, *seen)

    def idle(self, idle: Idle) -> None:
        """Nothing runs."""
        self.running = self.waiting = 0
        self.kv = idle.kv

    def died(self, _: Death) -> None:
        """Its requests and its KV pool are gone."""
        self.running = self.waiting = 0
        self.kv = None

    def acceptance(self) -> dict[str, float | None]:
        """Examined acceptance by class, over all who drafted; None where nothing was examined."""
        return {name: _number(found.value) for name, found in self._classes.items()}

    def cost_errors(self) -> dict[str, dict[str, float]]:
        """How far off the policy's predictions of a step's time were lately, by rows of the step."""
        return {e.rows: {"median": round(e.median, 4), "p90": round(e.p90, 4)} for e in self._cost_errors}

    def acceptance_by_proposer(self) -> dict[str, dict[str, float | None]]:
        """The same, of each who drafted."""
        return {
            name: {proposer: _number(value) for proposer, value in found.by_proposer().items()}
            for name, found in self._classes.items()
        }

    def tokens_per_second(self) -> float:
        """Over the last seconds, quiet ones included."""
        return round(self._tokens.value(self._clock()), 1)

    def lengths(self) -> dict[str, dict[int, int]]:
        """Of the rounds that are remembered: how often each k was chosen, by who was to draft."""
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for _, _, one in self._rounds:
            found[one.proposer][one.k] += 1
        return {name: dict(sorted(counts.items())) for name, counts in found.items()}

    def lengths_by_class(self) -> dict[str, dict[int, int]]:
        """The same, by traffic class."""
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for _, _, one in self._rounds:
            found[one.traffic_class][one.k] += 1
        return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}

    def reasons(self) -> dict[str, int]:
        """Of the same rounds: how often each reason settled k, the most frequent one first."""
        return dict(Counter(remembered.round.reason for remembered in self._rounds).most_common())

    def decisions(self, limit: int, request: str | None = None) -> Iterator[dict[str, Any]]:
        """The last rounds, newest first; of one request where it is named, all its texts."""
        wanted = (each for each in reversed(self._rounds) if request is None or _is_of(each.round, request))
        for step, load_state, one in islice(wanted, limit):
            yield {
                "step": step,
                "request": one.request,
                "class": one.traffic_class,
                "proposer": one.proposer,
                "k": one.k,
                "drafted": one.drafted,
                "examined": one.examined,
                "accepted": one.accepted,
                "reason": one.reason,
                "text": one.text,
                "load_state": load_state.name.lower(),
                "goodput": round(one.goodput, 1) or None,
                "alternatives": [
                    {"proposer": proposer, "k": k, "goodput": round(goodput, 1)}
                    for proposer, k, goodput in one.alternatives
                ],
            }


def _is_of(one: Round, request: str) -> bool:
    """Whether it is of one of the request's texts: all but the first have `#` and a number behind the id."""
    return one.request.partition("#")[0] == request


def _number(value: float) -> float | None:
    return None if value != value else round(value, 4)  # noqa: PLR0124  NaN, which JSON has not
