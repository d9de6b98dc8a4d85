"""What `benchmarks.drafts` found: its claims, its page, its document."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.claims import Claim
from benchmarks.paper import section
from benchmarks.questions import CHAT, CODE, Question
from benchmarks.shown import DEPTH, Shown

Speeds = dict[Question, dict[str, float]]
"""Tokens per second of one request at a time, by "plain" and "policy"."""


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Everything that was measured."""

    greedy: Mapping[str, Shown]  # by category
    warm: Mapping[str, Shown]  # the same at temperature 0.7
    trees: Mapping[int, tuple[Shown, Shown]]  # chains and trees, by tokens drafted
    steps: Mapping[str, float]  # milliseconds
    speeds: Speeds
    memory: Mapping[str, int]

    def claims(self) -> list[Claim]:
        """What the drafts must reach."""
        return [*self._acceptance(), *self._positions(), *self._times(), *self._trees()]

    def page(self) -> list[str]:
        """For people."""
        header = ["", *(f"{position}" for position in range(1, DEPTH + 1)), "tokens per round", "rounds"]
        speeds = ["prompt", "kind", "plain", "policy", "speedup"]
        rows = [[f"{n}", f"{a.per_round:.2f}", f"{b.per_round:.2f}"] for n, (a, b) in self.trees.items()]
        return [
            *section("", ["claim", "ours", "other", "ratio", "bound", ""], [c.cells for c in self.claims()]),
            *section(_words("greedy"), header, _acceptance_rows(self.greedy)),
            *section(_words("temperature 0.7"), header, _acceptance_rows(self.warm)),
            *section(
                "Tokens per round on chats, greedy, by tokens drafted:", ["tokens", "chain", "tree"], rows
            ),
            *section(
                "Milliseconds, one request:", [*self.steps], [[f"{ms:.2f}" for ms in self.steps.values()]]
            ),
            *section(
                "Tokens per second, one request, default policy without load caps:", speeds, self._rows()
            ),
        ]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "greedy": {category: shown.document() for category, shown in self.greedy.items()},
            "temperature 0.7": {category: shown.document() for category, shown in self.warm.items()},
            "trees": {n: {"chain": a.document(), "tree": b.document()} for n, (a, b) in self.trees.items()},
            "step_milliseconds": dict(self.steps),
            "tokens_per_second": {
                q.name: {"category": q.category, **each} for q, each in self.speeds.items()
            },
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
        level, plain = self.steps["draft level"], self.steps["plain step"]
        yield Claim("milliseconds of a draft level, against a plain step", level, plain, 0.12, at_most=True)
        yield self._speed("chat", CHAT, 1.5)
        yield self._speed("edit", ("edit",), 2.5)
        eight = [each for question, each in self.speeds.items() if question.category in _EIGHT]
        worst = min(eight, key=lambda each: each["policy"] / each["plain"])
        yield Claim("tokens/s, worst of the eight prompts", worst["policy"], worst["plain"], 0.98)

    def _trees(self) -> Iterator[Claim]:
        for nodes, (chain, tree) in self.trees.items():
            yield Claim(
                f"tokens per round, tree against chain of {nodes}", tree.per_round, chain.per_round, 1.0
            )

    def _speed(self, name: str, categories: Sequence[str], bound: float) -> Claim:
        """Of all their prompts, one after another: each writes as many tokens, so the mean is harmonic."""
        mine = [each for question, each in self.speeds.items() if question.category in categories]
        ours, other = (statistics.harmonic_mean(each[mode] for each in mine) for mode in ("policy", "plain"))
        return Claim(f"tokens/s, one request, {name}", ours, other, bound)

    def _rows(self) -> list[list[str]]:
        return [
            [q.name, q.category, f"{s['plain']:.0f}", f"{s['policy']:.0f}", f"{s['policy'] / s['plain']:.2f}"]
            for q, s in self.speeds.items()
        ]


_EIGHT = frozenset({"edit", "chat", "extract"})


def _kind(shown: Mapping[str, Shown], name: str) -> Shown:
    categories = CHAT if name == "chat" else (name,)
    return Shown.together(shown[category] for category in categories if category in shown)


def _words(how: str) -> str:
    return f"Conditional acceptance by position, chains of {DEPTH} by the head, {how}:"


def _acceptance_rows(shown: Mapping[str, Shown]) -> list[list[str]]:
    rows = [["chat (MT-bench)", *_kind(shown, "chat").cells]]
    return rows + [[category, *found.cells] for category, found in shown.items()]
