"""`/metrics`: what the daemon tells Prometheus, under the names that dashboards rely on."""

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.api import Idle, KVUsage, PhaseSeconds, Round, StepReport
from policies.base import LoadState, Reason
from policies.cost_error import CostError
from specd.telemetry.alarm import AlarmMetrics
from specd.telemetry.families import by_position, counter, gauge, gauges, histogram, info
from specd.telemetry.tally import (
    MAX_POSITIONS,
    STEP_BOUNDS,
    Histogram,
    PooledAcceptance,
    ProposerTally,
    Rate,
    TokenTimes,
    evidence_of,
)

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of `Metrics.render`."""

_KIND: Final = attrgetter("proposer", "k", "drafted", "examined", "accepted", "reason", "traffic_class")
_PHASES: Final = ("schedule", "draft", "verify", "commit")
_LENGTH_BOUNDS: Final = tuple(float(k) for k in range(MAX_POSITIONS + 1))


class Metrics:
    """The daemon's numbers. Fed by hooks that cost microseconds, summed up at scrape time.

    `now` is always a reading of the clock given here. Not safe for threads: the event loop owns it.

    Who calls what:
      who watches the engine    request_started, observe_step, observe_idle, engine_restarted
      the daemon                set_target, config_reloaded
      the alarm                 alarm, with counts of its own
      parts with own counts     include
      the admin listener        render
    """

    def __init__(
        self,
        *,
        version: str,
        restart_reasons: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`restart_reasons` are the words that `engine_restarted` will be given: their series start at 0."""
        self._clock = clock
        self._build = {"version": version, "python": platform.python_version()}
        self._proposers: dict[str, ProposerTally] = defaultdict(ProposerTally)
        self._lengths: dict[str, Histogram] = defaultdict(lambda: Histogram(_LENGTH_BOUNDS))
        self._reasons: Counter[str] = Counter({reason.value: 0 for reason in Reason})
        self._classes: dict[str, PooledAcceptance] = defaultdict(PooledAcceptance)
        self._phases = {phase: Histogram(STEP_BOUNDS) for phase in _PHASES}
        self._goodput = Rate()
        self._times = TokenTimes()
        self._load_state = LoadState.FULL
        self._cost_errors: tuple[CostError, ...] = ()
        self._running = self._waiting = 0
        self._kv: KVUsage | None = None
        self._preempted = self._failed_steps = 0
        self._target: dict[str, str] | None = None
        self._restarts: Counter[str] = Counter(dict.fromkeys(restart_reasons, 0))
        self._reload_ok: bool | None = None
        self._reload_time: float | None = None
        self._pending_keys = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.alarm = AlarmMetrics()
        self.include(self.alarm)

    def observe_step(self, report: StepReport, now: float) -> None:
        """Count all that one engine step did, its outputs' token times included."""
        self._observe_rounds(report.rounds)
        if report.rows:  # else it is of no step
            self._observe_phases(report.phases)
        self._times.observe(report.outputs, now)
        self._goodput.add(report.committed, now)
        self._load_state = report.load_state
        self._preempted += report.preempted
        self._failed_steps += report.failed is not None
        self._cost_errors = report.cost_errors or self._cost_errors
        self._running, self._waiting = report.running, report.waiting
        self._kv = report.kv

    def observe_idle(self, idle: Idle) -> None:
        """Nothing runs and nothing waits."""
        self._running = self._waiting = 0
        self._kv = idle.kv

    def request_started(self, request: str, admitted: float) -> None:
        """The request was handed to the engine; its time to first token runs since it was admitted.

        Its end is seen in the outputs of `observe_step`, or in `engine_restarted`.
        """
        self._times.started(request, admitted)

    def engine_restarted(self, reason: str) -> None:
        """The engine process is being replaced, and what was in it is lost."""
        self._restarts[reason] += 1
        self._times.forget_all()
        self._running = self._waiting = 0

    def set_target(
        self, revision: str, draft_revision: str, quantization: str, proposers: Iterable[str]
    ) -> None:
        """What is served now. Starts the proposers' series at 0, so that their first increase is seen."""
        self._times.forget_silent(self._clock())
        self._target = {"revision": revision, "draft_revision": draft_revision, "quantization": quantization}
        for proposer in proposers:
            self._proposers.setdefault(proposer, ProposerTally())

    def config_reloaded(self, ok: bool, unix_time: float, *, pending: int = 0) -> None:
        """The outcome of the start's load (ok) or of a reload; pending: keys that wait for a restart by now."""
        self._reload_ok = ok
        self._pending_keys = pending
        if ok:
            self._reload_time = unix_time

    def include(self, collector: Collector) -> None:
        """Render what this part counts, too."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, of content type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: the families, summed up now."""
        yield from self._speculation()
        yield from self._policy()
        yield from self._engine()
        yield from self._latency()
        yield from self._config()

    def _observe_rounds(self, rounds: Sequence[Round]) -> None:
        # Many rounds of a step are alike: counting the kinds first makes the rest cheap.
        for kind, times in Counter(map(_KIND, rounds)).items():
            proposer, k, drafted, examined, accepted, reason, traffic_class = kind
            self._reasons[reason] += times
            self._lengths[proposer].add(k, times)
            self._classes[traffic_class]  # known from its first round on
            if drafted:
                self._proposers[proposer].add(drafted, examined, accepted, times)
        for (traffic_class, proposer), seen in evidence_of(rounds).items():
            self._classes[traffic_class].add(proposer, *seen)

    def _observe_phases(self, phases: PhaseSeconds) -> None:
        for phase, buckets in self._phases.items():
            buckets.add(getattr(phases, phase))

    def _speculation(self) -> Iterator[Metric]:
        tallies = self._proposers
        yield counter(
            "specd_spec_decode_num_drafts_total",
            "Rounds in which something was drafted.",
            ("proposer",),
            [((name,), tally.drafts) for name, tally in tallies.items()],
        )
        yield counter(
            "specd_spec_decode_num_draft_tokens_total",
            "Tokens drafted.",
            ("proposer",),
            [((name,), tally.drafted) for name, tally in tallies.items()],
        )
        yield counter(
            "specd_spec_decode_num_accepted_tokens_total",
            "Drafted tokens accepted.",
            ("proposer",),
            [((name,), tally.accepted) for name, tally in tallies.items()],
        )
        yield by_position(
            "specd_spec_decode_num_accepted_tokens_per_pos_total",
            "Rounds that accepted the draft token at this position; the first is position 1.",
            {name: tally.accepted_by_position() for name, tally in tallies.items()},
        )
        yield by_position(
            "specd_spec_decode_num_examined_tokens_per_pos_total",
            "Rounds that examined the draft token at this position: all before it were accepted.",
            {name: tally.examined_by_position() for name, tally in tallies.items()},
        )

    def _policy(self) -> Iterator[Metric]:
        yield histogram("specd_draft_length", "Draft length chosen for a round.", "proposer", self._lengths)
        yield counter(
            "specd_policy_decisions_total",
            "Rounds by the reason for their draft length.",
            ("reason",),
            [((reason,), count) for reason, count in self._reasons.items()],
        )
        yield gauge(
            "specd_load_state", "What the load policy allows: 0 full, 1 shrunk, 2 off.", int(self._load_state)
        )
        yield gauges(
            "specd_step_cost_error",
            "How far off the policy's predictions of a step's time were lately: |ln(seen / predicted)|, by rows.",
            ("rows", "statistic"),
            [((e.rows, q), x) for e in self._cost_errors for q, x in (("median", e.median), ("p90", e.p90))],
        )
        yield gauges(
            "specd_acceptance",
            "Accepted over examined draft tokens, old ones fading, proposers weighted by their rounds; NaN at first.",
            ("class",),
            [((name,), pooled.value) for name, pooled in self._classes.items()],
        )
        yield gauges(
            "specd_proposer_acceptance",
            "The same of each proposer alone.",
            ("class", "proposer"),
            [
                ((name, proposer), value)
                for name, pooled in self._classes.items()
                for proposer, value in pooled.by_proposer().items()
            ],
        )

    def _engine(self) -> Iterator[Metric]:
        yield gauge("specd_running_requests", "Requests decoding or in prefill.", self._running)
        yield gauge("specd_waiting_requests", "Requests waiting for a place.", self._waiting)
        yield histogram("specd_step_seconds", "Time of an engine step by phase.", "phase", self._phases)
        yield gauge(
            "specd_goodput_tokens_per_second",
            f"Tokens committed per second over the last {Rate.WINDOW:.0f} seconds.",
            self._goodput.value(self._clock()),
        )
        kv = {} if self._kv is None else structs.asdict(self._kv)
        yield gauges(
            "specd_kv_blocks",
            "Blocks of the KV pool; cached ones keep a prefix and are taken when no block is free.",
            ("state",),
            [((state,), count) for state, count in kv.items()],
        )
        yield counter(
            "specd_preemptions_total",
            "Running texts that gave up their KV blocks, to be computed anew.",
            (),
            [((), self._preempted)],
        )
        yield counter(
            "specd_engine_failed_steps_total",
            "Steps given up since a self-check failed; what ran in them was ended with an error.",
            (),
            [((), self._failed_steps)],
        )
        yield counter(
            "specd_engine_restarts_total",
            "Engine processes replaced, by why.",
            ("reason",),
            [((reason,), count) for reason, count in self._restarts.items()],
        )

    def _latency(self) -> Iterator[Metric]:
        times = self._times
        yield HistogramMetricFamily(
            "specd_time_to_first_token_seconds",
            "From the admission of a request to its first token.",
            times.first.buckets(),
            times.first.sum,
        )
        yield HistogramMetricFamily(
            "specd_inter_token_seconds",
            "Time per token after the first; a round's pause is shared by its tokens.",
            times.between.buckets(),
            times.between.sum,
        )

    def _config(self) -> Iterator[Metric]:
        yield info("specd_build_info", "The running daemon.", self._build)
        if self._target is not None:
            yield info("specd_target_info", "The pair of models that is served.", self._target)
        if self._reload_ok is not None:
            yield gauge(
                "specd_config_last_reload_successful",
                "1 if the last load of the config was good.",
                self._reload_ok,
            )
        yield gauge(
            "specd_config_pending_restart",
            "Keys that the files have otherwise than the daemon since a partial reload.",
            self._pending_keys,
        )
        if self._reload_time is not None:
            yield gauge(
                "specd_config_last_reload_success_timestamp_seconds",
                "When a config was last loaded well.",
                self._reload_time,
            )
