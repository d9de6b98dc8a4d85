"""What is simulated of traffic, and what is claimed of it."""

from dataclasses import dataclass
from typing import Final

from benchmarks.claims import Claim
from policies.simulate import Outcome
from specd.simulate.field import ADAPTIVE

FULL: Final = 0.25
"""Of what a machine bears without drafts: what it gets at the trace's own rate, at most."""
WITHIN: Final = 0.01
"""Of the first: where the adaptive policy must be."""
NOISE: Final = 0.3
SWITCH: Final = 200
"""Tokens of a text after which its acceptance is another one."""
REGRET: Final = 0.05
"""Of the best static k in hindsight: what the adaptive policy may lose under noise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trace at one rate on machines of one kind."""

    trace: str
    rate: int
    profile: str
    machines: int
    outcomes: list[Outcome]

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.trace.removeprefix('azure_llm_')} at {self.rate}x, {self.profile} ({self.machines})"

    def of(self, policy: str) -> Outcome:
        """What came of one."""
        return next(outcome for outcome in self.outcomes if outcome.policy == policy)

    def claims(self) -> list[Claim]:
        """That the adaptive policy is first, or so near to it."""
        ours, others = self.of(ADAPTIVE), [each for each in self.outcomes if each.policy != ADAPTIVE]
        fastest = max(others, key=lambda each: each.tokens_per_second)
        quickest = min(others, key=lambda each: each.inter_token_mean)
        return [
            Claim(
                f"{self.name}: tokens/s, against {fastest.policy}",
                ours.tokens_per_second,
                fastest.tokens_per_second,
                1 - WITHIN,
            ),
            Claim(
                f"{self.name}: mean inter-token ms, against {quickest.policy}",
                ours.inter_token_mean * 1e3,
                quickest.inter_token_mean * 1e3,
                1 + WITHIN,
                at_most=True,
            ),
        ]


@dataclass(frozen=True, slots=True)
class Noisy:
    """Fixed numbers of requests, wrong costs, acceptance that switches."""

    profile: str
    running: int
    seed: int
    outcomes: list[Outcome]

    @property
    def best(self) -> Outcome:
        """Of all static k, in hindsight."""
        return max(self.outcomes[1:], key=lambda each: each.tokens_per_second)

    @property
    def ours(self) -> Outcome:
        """Of the adaptive policy."""
        return self.outcomes[0]

    def claim(self) -> Claim:
        """That the regret is small."""
        name = (
            f"{self.profile}, {self.running} running, seed {self.seed}: tokens/s, against {self.best.policy}"
        )
        return Claim(name, self.ours.tokens_per_second, self.best.tokens_per_second, 1 - REGRET)
