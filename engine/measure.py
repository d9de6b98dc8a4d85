"""What steps and drafts cost on this host: timed on the engine itself, while it writes a text that nobody reads.

The policy and the proposers are put aside meanwhile. A step of n rows is one that verifies n - 1 guesses, so that all
that comes with rows is in its time; a proposer's levels are told apart by drafts of different lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from engine.api import Request, SamplingParams, StepReport
from engine.draft.base import Ask, Draft, Proposer
from engine.sequence import Sequence as Seq
from engine.stopwatch import Stopwatch
from policies.base import Option
from policies.cost import DraftCost, StepCosts
from policies.fixed import Fixed

if TYPE_CHECKING:
    from engine.core import Engine

GoOn = Callable[[], bool]
"""Whether to; whoever is asked may say meanwhile that the engine is alive."""

_ROWS: Final = (1, 2, 4, 8, 16, 32)
_TIMES: Final = 5  # each step, the least of which counts; one more goes before them, for the caches
_PATIENCE: Final = 3.0  # seconds: of slow steps no more are timed than fit, but two of each
_FEWEST: Final = 2
_PROMPT: Final = 32
_ROOM: Final = 512  # tokens of the text: it must not end before all is timed
_SHORT, _LONG, _BROAD = (1, 1), (3, 3), (3, 12)  # (levels, tokens) of the drafts that are compared
_LONG_PROMPT: Final = 1024  # tokens of the text by which attention is timed
_LONG_ROOM: Final = 16
_LONGER: Final = 256  # tokens: less is lost in the noise
_TEXT: Final = "(measured)"
_WORTH: Final = 0.02  # of a plain step: what a proposer says it costs, below which it is believed


class _Guesses:
    """Drafts as many tokens as it is asked for, whatever they are."""

    name = "guesses"
    cost = 0.0

    def options(self, sequence: Seq) -> tuple[Option, ...]:  # noqa: ARG002
        return (Option(self.name, max(_ROWS)),)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft([0] * ask.k) for ask in asks]

    def forget(self, request: str) -> None:
        pass


class _EndedError(Exception):
    """The text ended before all was timed."""


class _BrokenOffError(Exception):
    """There is something better to do."""


class _Bench:
    """An engine that writes a text as it is told to."""

    def __init__(self, engine: "Engine", prompt: int, room: int, go_on: GoOn) -> None:
        """room: tokens of the text, at most."""
        self._engine = engine
        self._go_on = go_on
        self.times = _TIMES
        sampling = SamplingParams(max_tokens=room, temperature=0.0, ignore_eos=True)
        engine.submit(Request(id=_TEXT, prompt=[0] * prompt, sampling=sampling, tenant=_TEXT))
        while not self._step().rounds:
            pass

    def end(self) -> None:
        """So that another may begin."""
        self._engine.cancel(_TEXT)
        self._engine.step()

    def steps(self, rows: Sequence[int]) -> list[tuple[int, float]]:
        """(rows, seconds of a step of so many) of each. They take turns: what makes the machine slower for a second
        meets one step of each, and not all of one. Whatever else runs makes a step longer, never shorter.
        """
        took: list[list[float]] = []
        while len(took) <= self.times:
            took.append([sum(_phases(self._guessed(each - 1))) for each in rows])
            self.times = min(self.times, max(int(_PATIENCE / sum(took[-1])), _FEWEST))
        return list(zip(rows, map(min, zip(*took[1:], strict=True)), strict=True))

    def _guessed(self, tokens: int) -> StepReport:
        with self._engine.lent(Fixed(_Guesses.name, tokens)):
            return self._step()

    def draft(self, proposer: str, shape: tuple[int, int]) -> float | None:
        """Seconds of a draft; None where this proposer makes none of this shape."""
        return self._timed(proposer, shape, lambda report: report.phases.draft)

    def _timed(
        self, proposer: str, shape: tuple[int, int], seconds: Callable[[StepReport], float]
    ) -> float | None:
        levels, tokens = shape
        with self._engine.lent(Fixed(proposer, levels, tokens if tokens > levels else 0)):
            reports = [self._step() for _ in range(self.times + 1)]
        if any(report.rounds[0].k < levels for report in reports):
            return None
        return min(seconds(report) for report in reports[1:])

    def _step(self) -> StepReport:
        if not self._go_on():
            raise _BrokenOffError
        report = self._engine.step()
        if any(output.finish for output in report.outputs):
            raise _EndedError
        return report


def calibrate(engine: "Engine", say: Callable[[str], None]) -> None:
    """Time the steps and drafts of an engine that has nothing to do; its policy begins with what they cost."""
    watch = Stopwatch.start()
    costs = measure(engine, engine.proposers)
    if costs is not None:
        say(f"measured in {watch.lap():.1f} s, {in_words(costs)}")
        begin_with(engine, costs)


def begin_with(engine: "Engine", costs: StepCosts) -> None:
    """Have its policy begin with these costs, measured now or before; which sizes steps are filled up to it knows."""
    engine.policy.reckon(replace(costs, sizes=engine.policy.costs.sizes))
    engine.adopt(costs.drafts)


def calibrate_new(engine: "Engine", say: Callable[[str], None], go_on: GoOn) -> None:
    """The same for proposers that came later, unless it is broken off. What was learned of all else stays."""
    watch, new = Stopwatch.start(), engine.unmeasured
    try:
        costs = measure(engine, new, rows=(1,), go_on=go_on)
    except _BrokenOffError:
        return
    if costs is not None:
        say(f"measured in {watch.lap():.1f} s, {in_words(costs)}")
    known = engine.policy.costs if costs is None else costs
    engine.adopt({each.name: known.draft(each.name) for each in new})


def measure(
    engine: "Engine",
    proposers: Sequence[Proposer],
    *,
    rows: Sequence[int] = _ROWS,
    go_on: GoOn = lambda: True,
) -> StepCosts | None:
    """Costs of this engine, which must have nothing to do, with these proposers.

    go_on is asked before each step, and breaks off where it says no. None where the engine has no room for it.
    """
    costly = [each for each in proposers if each.cost >= _WORTH]
    with engine.lent(Fixed("", 0), [*costly, _Guesses()]):
        try:
            bench = _Bench(engine, _PROMPT, min(_ROOM, engine.max_context - _PROMPT), go_on)
            steps = StepCosts.measured(bench.steps(rows), {})
            plain = steps.plain
            found = {each.name: _draft_cost(bench, each, plain) for each in costly}
            key = _key(engine, bench, plain, go_on) if len(rows) > 1 else 0.0
        except _EndedError:
            return None
        finally:
            engine.cancel(_TEXT)
            engine.step()
    said = {each.name: DraftCost(each.cost * plain) for each in proposers}
    return replace(steps, drafts=said | found, key=key)


def _key(engine: "Engine", bench: _Bench, plain: float, go_on: GoOn) -> float:
    """Seconds for each token more that is attended to. 0 where a long text has no room, or takes too long to read."""
    longer = min(_LONG_PROMPT, engine.max_context - _LONG_ROOM) - _PROMPT
    if longer < _LONGER or bench.times == _FEWEST:
        return 0.0
    bench.end()
    long = _Bench(engine, _PROMPT + longer, _LONG_ROOM, go_on)
    ((_, took),) = long.steps((1,))
    return max(took - plain, 0.0) / longer


def in_words(costs: StepCosts) -> str:
    """For the log."""
    plain = costs.plain
    rows = ", ".join(f"{rows} rows {cost / plain:.2f}" for rows, cost in costs.steps[1:])
    levels = ", ".join(f"a level of {name} {cost.level / plain:.3f}" for name, cost in costs.drafts.items())
    return f"a plain step {plain * 1e3:.2f} ms; in plain steps: {rows}" + (f"; {levels}" if levels else "")


def _draft_cost(bench: _Bench, proposer: Proposer, plain: float) -> DraftCost:
    short, long = bench.draft(proposer.name, _SHORT), bench.draft(proposer.name, _LONG)
    if short is None:
        return DraftCost(proposer.cost * plain)
    level = short if long is None else max(long - short, 0.0) / (_LONG[0] - _SHORT[0])
    broad = bench.draft(proposer.name, _BROAD)
    beyond = 0.0 if broad is None or long is None else max(broad - long, 0.0)
    return DraftCost(
        level=level,
        fixed=max(short - level, 0.0),
        node=beyond / (_BROAD[1] - _BROAD[0]),
    )


def _phases(report: StepReport) -> tuple[float, ...]:
    phases = report.phases
    return phases.schedule, phases.draft, phases.verify, phases.commit
