"""What `benchmarks.drafts` found: its claims, its page, its document."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from benchmarks.claims import Claim
from benchmarks.paper import section
from benchmarks.questions import CHAT, CODE, Question
from benchmarks.shown import DEPTH, LONGEST, Shown
from engine.api import PhaseSeconds


class Written(NamedTuple):
    """An answer, alone on the machine."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @classmethod
    def median(cls, runs: Sequence[Self]) -> Self:
        """The one with the median rate; of two in the middle the slower."""
        return sorted(runs, key=lambda run: run.rate)[(len(runs) - 1) // 2]


Speeds = dict[Question, dict[str, Written]]
"""Of one request at a time, by "plain" and "policy"."""


class Shape(NamedTuple):
    """Of a draft."""

    levels: int
    nodes: int = 0  # of a tree, in all; 0 for a chain

    @property
    def name(self) -> str:
        """For a table."""
        if not self.levels:
            return "none"
        return (
            f"tree of {self.levels} levels, {self.nodes} tokens" if self.nodes else f"chain of {self.levels}"
        )


PLAIN: Final = Shape(0)
_CHAIN: Final = Shape(4)
SHAPES: Final = (_CHAIN, Shape(4, 16), Shape(8), Shape(8, 32))
"""Whose steps are timed: chains, and trees of as many levels, four tokens each."""


class StepTime(NamedTuple):
    """Milliseconds of a step, medians."""

    draft: float
    verify: float
    whole: float

    @classmethod
    def of(cls, phases: Sequence[PhaseSeconds]) -> Self:
        """Of some steps."""
        whole = [each.schedule + each.draft + each.verify + each.commit for each in phases]
        each_phase = ([each.draft for each in phases], [each.verify for each in phases], whole)
        return cls(*(1e3 * statistics.median(seconds) for seconds in each_phase))


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Everything that was measured."""

    greedy: Mapping[str, Shown]  # by category
    warm: Mapping[str, Shown]  # the same at temperature 0.7
    trees: Mapping[int, tuple[Shown, Shown]]  # chains and trees, by tokens drafted
    steps: Mapping[Shape, StepTime]  # plain ones, and those with drafts of each of SHAPES
    speeds: Speeds
    memory: Mapping[str, int]
    grown: Mapping[int, int]
    """Rounds of the default policy by the tokens of their trees; 0 where there was none."""

    def claims(self) -> list[Claim]:
        """What the drafts must reach."""
        return [*self._acceptance(), *self._positions(), *self._times(), *self._trees()]

    def page(self) -> list[str]:
        """For people."""
        header = ["", *(f"{position}" for position in range(1, DEPTH + 1)), "tokens per round", "rounds"]
        speeds = ["prompt", "kind", "tokens", "plain", "policy", "speedup"]
        rows = [
            [f"{n}", f"{a.per_round:.2f}", f"{b.per_round:.2f}", f"{self._chosen(n):.1%}"]
            for n, (a, b) in self.trees.items()
        ]
        return [
            *section("", ["claim", "ours", "other", "ratio", "bound", ""], [c.cells for c in self.claims()]),
            *section(_words("greedy"), header, _acceptance_rows(self.greedy)),
            *section(_words("temperature 0.7"), header, _acceptance_rows(self.warm)),
            *section(
                f"Tokens per round on chats, greedy, by tokens drafted (chains of at most {LONGEST}), and in what share"
                " of its rounds the default policy drafted a tree of that size, or one between it and the row above:",
                ["tokens", "chain", "tree", "chosen"],
                rows,
            ),
            *section(_TIMES, ["draft", "drafting", "each level", "verifying", "step"], self._time_rows()),
            *section(
                "Tokens per second to the end of the answer, one request, default policy:",
                speeds,
                self._rows(),
            ),
        ]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "greedy": {category: shown.document() for category, shown in self.greedy.items()},
            "temperature 0.7": {category: shown.document() for category, shown in self.warm.items()},
            "trees": {n: {"chain": a.document(), "tree": b.document()} for n, (a, b) in self.trees.items()},
            "step_milliseconds": {shape.name: time._asdict() for shape, time in self.steps.items()},
            "answers": {
                q.name: {"category": q.category, **{mode: run._asdict() for mode, run in each.items()}}
                for q, each in self.speeds.items()
            },
            "rounds_by_tokens_of_tree": dict(self.grown),
            "memory": dict(self.memory),
            "claims": [claim.document() for claim in self.claims()],
        }

    def _acceptance(self) -> Iterator[Claim]:
        warm = Shown.together(self.warm.values()).conditional[0]
        chat, code = (_kind(self.greedy, name).conditional[0] for name in ("chat", CODE))
        yield Claim("acceptance at position 1, chat, greedy", chat, 1.0, 0.55)
        yield Claim("acceptance at position 1, code, greedy", code, 1.0, 0.60)
        yield Claim("acceptance at position 1, all, temperature 0.7", warm, 1.0, 0.45)

    def _positions(self) -> Iterator[Claim]:
        for name in ("chat", CODE):
            first, *others = _kind(self.greedy, name).conditional
            for position, rate in enumerate(others[:2], start=2):
                yield Claim(f"acceptance at position {position} against 1, {name}, greedy", rate, first, 0.85)

    def _times(self) -> Iterator[Claim]:
        level, plain = self.steps[_CHAIN].draft / _CHAIN.levels, self.steps[PLAIN].whole
        yield Claim("milliseconds of a draft level, against a plain step", level, plain, 0.12, at_most=True)
        yield self._speed("chat", CHAT, 1.5)
        yield self._speed("edit", ("edit",), 2.5)
        eight = [each for question, each in self.speeds.items() if question.category in _EIGHT]
        worst = min(eight, key=lambda each: each["policy"].rate / each["plain"].rate)
        yield Claim("tokens/s, worst of the eight prompts", worst["policy"].rate, worst["plain"].rate, 0.98)

    def _trees(self) -> Iterator[Claim]:
        for nodes, (chain, tree) in self.trees.items():
            name = f"tokens per round, tree against chain of {nodes}"
            yield Claim(name, tree.per_round, chain.per_round, 1.0)

    def _chosen(self, nodes: int) -> float:
        """Share of the default policy's rounds with a tree of that size, or of one down to the table's next smaller."""
        below = max((n for n in self.trees if n < nodes), default=0)
        return sum(self.grown.get(n, 0) for n in range(below + 1, nodes + 1)) / max(
            sum(self.grown.values()), 1
        )

    def _speed(self, name: str, categories: Sequence[str], bound: float) -> Claim:
        """Of all their prompts, one after another."""
        mine = [each for question, each in self.speeds.items() if question.category in categories]
        ours, other = (
            sum(each[mode].tokens for each in mine) / sum(each[mode].seconds for each in mine)
            for mode in ("policy", "plain")
        )
        return Claim(f"tokens/s, one request, {name}", ours, other, bound)

    def _time_rows(self) -> list[list[str]]:
        def cells(shape: Shape, time: StepTime) -> list[str]:
            level = f"{time.draft / shape.levels:.2f}" if shape.levels else "-"
            return [shape.name, f"{time.draft:.2f}", level, f"{time.verify:.2f}", f"{time.whole:.2f}"]

        return [cells(*each) for each in self.steps.items()]

    def _rows(self) -> list[list[str]]:
        def cells(plain: Written, policy: Written) -> tuple[str, ...]:
            return (
                f"{policy.tokens}",
                f"{plain.rate:.0f}",
                f"{policy.rate:.0f}",
                f"{policy.rate / plain.rate:.2f}",
            )

        return [[q.name, q.category, *cells(s["plain"], s["policy"])] for q, s in self.speeds.items()]


_TIMES = "Milliseconds of a step by the shape of its draft, one request, taking turns:"
_EIGHT = frozenset({"edit", "chat", "extract"})


def _kind(shown: Mapping[str, Shown], name: str) -> Shown:
    categories = CHAT if name == "chat" else (name,)
    return Shown.together(shown[category] for category in categories if category in shown)


def _words(how: str) -> str:
    return f"Conditional acceptance by position, chains of {DEPTH} by the head, {how}:"


def _acceptance_rows(shown: Mapping[str, Shown]) -> list[list[str]]:
    rows = [["chat (MT-bench)", *_kind(shown, "chat").cells]]
    return rows + [[category, *found.cells] for category, found in shown.items()]
