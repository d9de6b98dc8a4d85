"""What the floor rules say of the evidence, right now.

stratum    a traffic class and who drafted: drafts of different proposers are accepted at different rates, so that
           together they would seem to drift whenever the policy leaves more rounds to another one
evidence   rounds whose first draft position was examined, by stratum and time

A round that drafted nothing is no evidence, nor is one of tokens that a grammar forces. So a policy that turns
drafting off neither raises an alert nor ends one: the evidence runs out and the verdict becomes NO_EVIDENCE.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

from engine.api import Round
from policies.drift import Baseline
from specd.alerts.finding import Finding, Pair, Verdict
from specd.config.alerts import RuleSection

SOURCE: Final = "floor"
BACK: Final = "acceptance is no longer under the floor"

_TWO_SIDED: Final = 1.96

Before = Callable[[str, str], Baseline | None]
"""What acceptance of a class and proposer was, None where nobody knows."""


class Stratum(NamedTuple):
    """What is judged on its own."""

    traffic_class: str
    proposer: str


@dataclass(frozen=True, slots=True)
class Counts:
    """First draft positions examined, and how many of them were accepted."""

    examined: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """NaN when nothing was examined."""
        return self.accepted / self.examined if self.examined else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Of the acceptance behind them, as if they were independent: Wilson's, of 95 %."""
        n, z2 = max(self.examined, 1), _TWO_SIDED**2
        middle = (self.accepted + z2 / 2) / (n + z2)
        width = _TWO_SIDED * sqrt(self.accepted * (n - self.accepted) / n + z2 / 4) / (n + z2)
        return middle - width, middle + width


class Evidence:
    """Recent rounds by stratum; what is older than the horizon is dropped."""

    _SLOT = 0.25

    def __init__(self, horizon: float) -> None:
        """`horizon`: seconds that are kept, at least the longest window of any rule."""
        self.horizon = horizon
        self._slots: dict[Stratum, deque[list[float]]] = {}  # of [start, examined, accepted], oldest first

    def observe(self, rounds: Iterable[Round], now: float) -> None:
        """Take in one step's rounds."""
        for one in rounds:
            if one.is_evidence:
                self.add(Stratum(one.traffic_class, one.proposer), 1, one.accepted > 0, now)

    def add(self, stratum: Stratum, examined: int, accepted: int, now: float) -> None:
        """Take in so many first positions at once."""
        slot = self._slot(stratum, now)
        slot[1] += examined
        slot[2] += accepted

    def _slot(self, stratum: Stratum, now: float) -> list[float]:
        slots = self._slots.setdefault(stratum, deque())
        if not slots or not 0 <= now - slots[-1][0] < self._SLOT:
            slots.append([now, 0, 0])
            while len(slots) > 1 and slots[0][0] <= now - self.horizon:
                slots.popleft()
        return slots[-1]

    def strata(self) -> list[Stratum]:
        """All of which something was ever examined, since the last `clear`."""
        return list(self._slots)

    def counts(self, stratum: Stratum, window: float, now: float) -> Counts:
        """What was examined in the last `window` seconds."""
        recent = [slot for slot in self._slots.get(stratum, ()) if now - window < slot[0] <= now]
        return Counts(
            examined=int(sum(slot[1] for slot in recent)), accepted=int(sum(slot[2] for slot in recent))
        )

    def clear(self) -> None:
        """Another pair is served: what was seen says nothing of it."""
        self._slots.clear()


def unknown(_class: str, _proposer: str) -> None:
    """Before anybody has learned what acceptance is."""


def evaluate(
    rules: Sequence[RuleSection], evidence: Evidence, pair: Pair, now: float, before: Before = unknown
) -> list[Finding]:
    """Every rule's word on every stratum that it watches; no two findings have the same labels."""
    return [
        _finding(rule, stratum, evidence.counts(stratum, rule.window_seconds, now), pair, before(*stratum))
        for rule in rules
        for stratum in evidence.strata()
        if watching(rules, _labels(rule, stratum, pair)) is rule
    ]


def watching(rules: Iterable[RuleSection], labels: dict[str, str]) -> RuleSection | None:
    """The rule that findings with these labels come from, None when there is none any more."""
    alike = [
        rule for rule in rules if (rule.name, rule.severity) == (labels["alertname"], labels["severity"])
    ]
    by_class = {rule.traffic_class: rule for rule in alike}
    return by_class.get(labels["class"], by_class.get("*"))


def _finding(
    rule: RuleSection, stratum: Stratum, counts: Counts, pair: Pair, before: Baseline | None
) -> Finding:
    verdict, labels = _verdict(rule, counts), _labels(rule, stratum, pair)
    texts = _annotations(rule, labels, counts, verdict)
    texts["description"] += f" {_compared(before)}"
    return Finding(SOURCE, labels, verdict, texts, rule.for_seconds, rule.keep_seconds)


def _annotations(
    rule: RuleSection, labels: dict[str, str], counts: Counts, verdict: Verdict
) -> dict[str, str]:
    side = "under" if verdict is Verdict.BREACHED else "not under"
    low, high = counts.interval
    texts = {
        "summary": (
            f"Acceptance of class {labels['class']}, drafted by {labels['proposer']}, is"
            f" {counts.acceptance:.2f}, {side} the floor of {rule.below:g}"
        ),
        "description": (
            f"{counts.accepted} of {counts.examined} examined drafts kept their first token in the last"
            f" {rule.window_seconds:g} s, which stands for an acceptance of {low:.2f} to {high:.2f} (95 %, if drafts"
            f" were independent; class {labels['class']}, drafted by {labels['proposer']}, target"
            f" {labels['target_revision']}, draft {labels['draft_revision']}). The floor is {rule.below:g}, for"
            f" {rule.for_seconds:g} s."
        ),
    }
    return texts | ({"resolution": BACK} if verdict is Verdict.FINE else {})


def _compared(before: Baseline | None) -> str:
    if before is None:
        return "What acceptance was before has not been learned yet."
    return f"Before, it was {before.mean:.2f}, over {before.requests} requests."


def _verdict(rule: RuleSection, counts: Counts) -> Verdict:
    if counts.examined < rule.min_examined:
        return Verdict.NO_EVIDENCE
    if counts.accepted < rule.below * counts.examined:
        return Verdict.BREACHED
    return Verdict.FINE if counts.accepted >= rule.fine_from * counts.examined else Verdict.BETWEEN


def _labels(rule: RuleSection, stratum: Stratum, pair: Pair) -> dict[str, str]:
    return {
        "alertname": rule.name,
        "class": stratum.traffic_class,
        "proposer": stratum.proposer,
        "severity": rule.severity,
        "target_revision": pair.target_revision,
        "draft_revision": pair.draft_revision,
    }
