"""The policies that are compared, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.base import Option
from policies.plan import load_table
from policies.settings import LoadSettings, PolicyKind, PolicySettings
from policies.simulate import (
    Acceptance,
    Adaptive,
    Contender,
    Fixed,
    Jitter,
    Machine,
    Outcome,
    Table,
    Texts,
    Trace,
    mistaken,
    simulate,
)
from specd.errors import UserError

ADAPTIVE: Final = "adaptive"
TABLE: Final = "table"
OFF: Final = "off"
STATIC: Final = "static-"
_LEARNING: Final[dict[str, PolicyKind]] = {ADAPTIVE: "goodput", "ewma": "ewma"}
_RESUME: Final = 0.75  # of the load at which the table ends, where drafting comes back


def everyone(k_max: int) -> tuple[str, ...]:
    """All that are compared unless told otherwise."""
    return ADAPTIVE, TABLE, *(f"{STATIC}{k}" for k in range(1, k_max + 1)), OFF


@dataclass(frozen=True, slots=True)
class Field:
    """What a contender is made of."""

    trace: Trace
    machine: Machine
    acceptance: Acceptance
    k_max: int
    noise: float = 0.0  # of steps; and by how much the costs that learners begin with are wrong
    seed: int = 0

    def play(self, name: str, tell: Callable[[int], None] = lambda _: None) -> Outcome:
        """A policy on the trace. tell: how many requests have ended, now and then."""
        texts = Texts(self.acceptance, self.trace.classes, self.trace.kind, self.k_max, self.seed)
        return simulate(
            self.trace,
            self.machine,
            texts,
            self.contender(name),
            jitter=Jitter(self.noise, self.seed),
            tell=tell,
        )

    def contender(self, name: str) -> Contender:
        """A new one, which has learned nothing. Raises UserError for a name that there is not."""
        most = self.machine.max_running
        if name == OFF:
            return Fixed(name, 0, most)
        if name == TABLE:
            return Table(name, self.load_settings(), self.k_max)
        if name in _LEARNING:
            return self._learning(name)
        k = name.removeprefix(STATIC)
        if name.startswith(STATIC) and k.isdecimal() and int(k) <= self.k_max:
            return Fixed(name, int(k), most)
        raise UserError(f"--policy: there is no {name!r}: {_names(self.k_max)}.")

    def words(self) -> str:
        """What is simulated, in a sentence."""
        trace, machine = self.trace, self.machine
        return (
            f"{len(trace)} requests in {trace.seconds:.0f} s, {trace.context.mean():.0f} tokens of prompt and"
            f" {trace.generated.mean():.0f} of answer; up to {machine.max_running} run at a time, a plain step of one"
            f" takes {machine.costs.plain * 1e3:.1f} ms."
        )

    def load_settings(self) -> LoadSettings:
        """The table by which `table` goes: for each number running the k that brings most at the mean acceptance of
        this trace. It is told what the others have to learn.
        """
        trace = self.trace
        context = int(np.average(trace.context + trace.generated / 2, weights=trace.generated))
        rows = load_table(
            self.machine.costs,
            self.machine.proposer,
            self._mean_acceptance(),
            max_running=self.machine.max_running,
            context=context,
        )
        ends = max((running for running, k in rows if k), default=0)
        return LoadSettings(
            table=tuple((running, k) for running, k in rows if k) or ((1, 0),),
            off_above=ends,
            resume_at=max(int(ends * _RESUME), 0),
        )

    def _mean_acceptance(self) -> list[float]:
        """By position, over the tokens of the trace."""
        weights = np.bincount(self.trace.kind, self.trace.generated, len(self.trace.classes))
        traits = [self.acceptance.of(name) for name in self.trace.classes]
        by_position = [[t.first * t.fall**j for j in range(self.k_max)] for t in traits]
        means: list[float] = np.average(by_position, axis=0, weights=weights).tolist()
        return means

    def _learning(self, name: str) -> Contender:
        costs = mistaken(self.machine.costs, self.noise, self.seed)
        settings = PolicySettings(kind=_LEARNING[name], k_max=self.k_max)
        class_of = [self.trace.classes[kind] for kind in self.trace.kind.tolist()]
        return Adaptive(name, settings, costs, Option(self.machine.proposer, self.k_max), class_of)


def _names(k_max: int) -> str:
    return f"choose of {', '.join(_LEARNING)}, {TABLE}, {STATIC}0 to {STATIC}{k_max}, {OFF}"
