"""What deciding costs: `Controller.decide` by itself, and all control within a step of the engine."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.rivals import DRAFTED, Rivals
from benchmarks.steady import Ask, started, timed_step
from engine.core import Engine
from policies.base import Decision, Drafting, LoadView, Observation, Option, RequestView, StepSeen
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts

SEQUENCES: Final = (64, 256, 1024, 4096)
OPTIONS: Final = (
    Option("eagle", 8),
    Option("ngram", 8, grade=2),
    Option("eagle", 6, width=4),
    Option("model", 8),
)
_CLASSES: Final = ("chat", "code", "copy", "default")
_WARM: Final = 40  # steps, in which estimates come to rest
_RUNS: Final = 3
RUNNING: Final = 16


class Deciding(NamedTuple):
    """Seconds of a decision. In most steps what was decided last stands, so the median is that of a look at what is
    new, and the mean is what is paid.
    """

    mean: float
    median: float


@dataclass(frozen=True, slots=True)
class Control:
    """Seconds of a step in which `RUNNING` requests decode, medians."""

    step: float
    schedule: float
    choose: float
    observe: float
    tell: float

    @property
    def share(self) -> float:
        """Of the step: who runs, how far each drafts, what is learned from it, and what is told of it."""
        return (self.schedule + self.choose + self.observe + self.tell) / self.step


class _Crowd:
    """Requests that decode for ever, each with an acceptance of its own."""

    def __init__(self, sequences: int, options: int) -> None:
        self._dice = np.random.default_rng(0)
        self._rates = self._dice.beta(4, 3, sequences)
        self._options = OPTIONS[:options]
        self._names = [f"r{i}" for i in range(sequences)]
        self.steps = 0

    def views(self) -> list[RequestView]:
        """New in each step, of the same names, as the engine's are."""
        self.steps += 1
        return [
            RequestView(
                request=name,
                traffic_class=_CLASSES[i % len(_CLASSES)],
                tenant="default",
                remaining_tokens=500,
                context_tokens=300 + self.steps,
                speculate=True,
                fixed_k=None,
                options=self._options,
            )
            for i, name in enumerate(self._names)
        ]

    def observations(self, views: Sequence[RequestView], decisions: Sequence[Decision]) -> list[Observation]:
        """What their drafts came to."""
        found = []
        runs = (
            self._dice.geometric(1 - self._rates) - 1
        )  # levels that would be accepted, were the draft endless
        for view, decision, run in zip(views, decisions, runs.tolist(), strict=True):
            if decision.option is None or decision.k == 0:
                continue
            accepted = min(run, decision.k)
            examined = min(accepted + 1, decision.k)
            proposer, _, grade, width, *_ = decision.option
            found.append(
                Observation(
                    view.request, view.traffic_class, proposer, decision.k, examined, accepted, grade, width
                )
            )
        return found


def decide_seconds(sequences: int, options: int, repeats: int) -> Deciding:
    """Of so many decisions for all sequences: the best of some runs, since what else a machine does only adds to it."""
    return min(_decide_seconds(sequences, options, repeats) for _ in range(_RUNS))


def _decide_seconds(sequences: int, options: int, repeats: int) -> Deciding:
    """By a policy that has learned from earlier ones."""
    costs = _roomy(sequences)
    policy, crowd, took = Controller(DRAFTED, costs), _Crowd(sequences, options), []
    now = 0.0
    for _ in range(_WARM + repeats):
        views, load = crowd.views(), LoadView(sequences, 0, 0.5, now)
        begin = time.perf_counter()
        decisions = policy.decide(load, views)
        took.append(time.perf_counter() - begin)
        observations = crowd.observations(views, decisions)
        step = _seen(costs, now, decisions, observations)
        now = step.now
        policy.observe(observations, step)
    return Deciding(statistics.mean(took[_WARM:]), statistics.median(took[_WARM:]))


def _roomy(sequences: int) -> StepCosts:
    """A machine on which nine times the rows take twice the time, so that there are lengths to decide on."""
    steps = ((1, 8e-3), (sequences, 10e-3), (9 * sequences, 20e-3))
    drafts = {
        "eagle": DraftCost(0.3e-3, 0.2e-3),
        "ngram": DraftCost(0.01e-3),
        "model": DraftCost(1e-3, 0.2e-3),
    }
    return StepCosts(steps, drafts)


def _seen(
    costs: StepCosts, now: float, decisions: Sequence[Decision], observations: Sequence[Observation]
) -> StepSeen:
    """A step that took what the costs say."""
    rows = sum(1 + decision.tokens for decision in decisions)
    drafting = []
    for name in dict.fromkeys(d.option.proposer for d in decisions if d.option is not None):
        mine = [d for d in decisions if d.option is not None and d.option.proposer == name]
        levels, tokens = max(d.k for d in mine), sum(d.tokens for d in mine)
        seconds = costs.draft(name).of(levels, tokens)
        drafting.append(Drafting(name, seconds, len(mine), levels, tokens))
    seconds = float(costs.table(rows)[rows]) + sum(each.seconds for each in drafting)
    return StepSeen(
        now=now + seconds,
        seconds=seconds,
        rows=rows,
        prefill_rows=0,
        padding=0,
        sequences=len(decisions),
        context=400 * len(decisions),
        committed=len(decisions) + sum(each.accepted for each in observations),
        drafting=tuple(drafting),
    )


def control(rivals: Rivals, policy: Controller, batch: Sequence[Ask], steps: int) -> Control:
    """Within steps of the engine in which all of the batch decode under the policy."""
    engine = rivals.engine
    found: list[tuple[float, ...]] = []
    with (
        engine.lent(policy),
        started(engine, batch, steps),
        _timed(engine, "_choose") as choose,
        _timed(engine, "_observe") as observe,
        _timed(engine, "_tell") as tell,
    ):
        for _ in range(steps):
            seconds, report = timed_step(engine)
            found.append((seconds, report.phases.schedule - choose[-1], choose[-1], observe[-1], tell[-1]))
    return Control(*(statistics.median(each) for each in zip(*found, strict=True)))


@contextmanager
def _timed(engine: Engine, method: str) -> Iterator[list[float]]:
    """While entered, each call of the method adds its seconds to the list."""
    original, took = getattr(engine, method), []

    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        result = original(*args)
        took.append(time.perf_counter() - begin)
        return result

    with patch.object(engine, method, timed):
        yield took
