"""What is tried: numbers of texts and lengths of drafts, each several times, and what the steps of all tries make.

arm      a length of all drafts; 0 is speculation off
try      some texts written together under one arm
round    a try of each arm, with the same texts: so that all arms have what the machine does meanwhile, and what the
         texts are like, in equal parts
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from engine.api import Ready, Request, SamplingParams
from policies.load import UNCAPPED
from policies.profile import Point
from policies.settings import PolicySettings
from specd.bench.prompts import Prompt, prompts
from specd.calibrate.rig import Step
from specd.http.prompt import PromptEncoder

SETTLING = 2
"""Steps of a try that are not counted: in the first ones drafts catch up on the prompts."""

_LEAST_STEPS = 8
_MAX_TOKENS = 384
_FULL = 0.9  # of the KV positions: more is not asked for

NO_LIMIT = replace(UNCAPPED, kv_reserve=0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try."""

    mix: str
    running: tuple[int, ...]
    lengths: tuple[int, ...]  # of drafts, 0 among them
    rounds: int
    seconds: float  # of a try, about
    long_running: tuple[int, ...] = ()
    long_context: int = 1024  # tokens, about

    @property
    def tries(self) -> int:
        """In all."""
        return len(self.lengths) * self.rounds * (len(self.running) + len(self.long_running))

    def enough(self, steps: Sequence[Step]) -> bool:
        """Whether a try has shown what it was to show."""
        counted = steps[SETTLING:]
        return len(counted) >= _LEAST_STEPS and sum(step.seconds for step in counted) >= self.seconds


@dataclass(frozen=True, slots=True)
class Try:
    """One of them."""

    running: int
    k: int
    round: int
    long: bool


def tries(plan: Plan) -> Iterator[Try]:
    """All of them, in order; the arms of each round begin with another one, since the first of them has to prefill."""
    sizes = [
        *((running, False) for running in plan.running),
        *((running, True) for running in plan.long_running),
    ]
    for running, long in sizes:
        for number in range(plan.rounds):
            turned = number % len(plan.lengths)
            for k in (*plan.lengths[turned:], *plan.lengths[:turned]):
                yield Try(running, k, number, long)


def policy_of(settings: PolicySettings, k: int) -> PolicySettings:
    """What the operator has set, with drafts of a fixed length and nothing that makes them shorter."""
    free = replace(settings, load=NO_LIMIT, tenants=(), objective="throughput")
    if k == 0:
        return replace(free, kind="off")
    return replace(free, kind="static", static_k=k, k_max=k)


class Texts:
    """What is written: the texts of a mix, in tokens, the same ones for all arms of a round."""

    def __init__(self, plan: Plan, encoder: PromptEncoder, ready: Ready) -> None:
        self._plan = plan
        self._encoder = encoder
        self._longest = ready.max_context - min(_MAX_TOKENS, ready.max_context // 2)
        self._max_tokens = ready.max_context - self._longest
        self._continues = not ready.encodes
        self._positions = int(_FULL * ready.kv_blocks * ready.block_size)

    def fits(self, running: int, *, long: bool) -> bool:
        """Whether the KV memory holds so many of them at once."""
        prompt = min(self._plan.long_context, self._longest) if long else self._longest_short()
        return running * (prompt + self._max_tokens) <= self._positions

    def of(self, each: Try) -> list[Request]:
        """The requests of one try. Their ids are its own."""
        prompts = self._prompts(each.round, each.running, long=each.long)
        return [
            Request(
                id=f"{each.running}-{each.k}-{each.round}-{each.long}-{number}",
                prompt=tokens,
                sampling=SamplingParams(
                    max_tokens=self._max_tokens, temperature=prompt.temperature, ignore_eos=True, seed=number
                ),
                continues=self._continues,
                traffic_class=prompt.traffic_class,
            )
            for number, (prompt, tokens) in enumerate(prompts)
        ]

    def _prompts(self, seed: int, count: int, *, long: bool) -> list[tuple[Prompt, list[int]]]:
        source = prompts(self._plan.mix, seed)
        found = []
        for prompt in islice(source, count):
            before = "\n".join(each.text for each in islice(source, 12)) if long else ""
            found.append((prompt, self._tokens(prompt.text, before)))
        return found

    def _tokens(self, text: str, before: str) -> list[int]:
        """A chat where the model knows chats; what comes before it fills it up to a long context."""
        tokens = self._encoder.message(text)
        room = min(self._longest, self._plan.long_context) - len(tokens)
        if before and room > 0:
            filling = self._encoder.message(before)
            repeated = filling * (room // len(filling) + 1)
            tokens = repeated[:room] + tokens
        return tokens[-self._longest :]

    def _longest_short(self) -> int:
        return max(len(tokens) for _, tokens in self._prompts(0, 12, long=False))


class Results:
    """Steps by what was tried."""

    def __init__(self) -> None:
        self._steps: dict[tuple[bool, int, int], list[Step]] = {}
        self._context: dict[tuple[bool, int], int] = {}

    def add(self, each: Try, requests: Sequence[Request], steps: Sequence[Step]) -> None:
        """What one try showed."""
        self._steps.setdefault((each.long, each.running, each.k), []).extend(steps[SETTLING:])
        lengths = [len(request.prompt) for request in requests]
        self._context.setdefault((each.long, each.running), round(sum(lengths) / len(lengths)))

    def points(self, *, long: bool) -> list[Point]:
        """What all tries showed, of numbers running for which every arm showed something."""
        found = [
            _point(running, k, self._context[is_long, running], steps)
            for (is_long, running, k), steps in self._steps.items()
            if is_long == long and steps
        ]
        arms = Counter(point.running for point in found)
        return [point for point in found if arms[point.running] == max(arms.values())]


def _point(running: int, k: int, context: int, steps: Sequence[Step]) -> Point:
    seconds = np.array([step.seconds for step in steps])
    p50, p99 = np.percentile(seconds, (50, 99)).tolist()
    rounds = sum((step.rounds for step in steps), Counter[str]())
    tokens = sum((step.tokens_by_class for step in steps), Counter[str]())
    return Point(
        running=running,
        k=k,
        context=context,
        tokens_per_second=sum(step.tokens for step in steps) / float(seconds.sum()),
        p50=p50,
        p99=p99,
        tokens_a_round={name: tokens[name] / rounds[name] for name in sorted(rounds)},
    )
