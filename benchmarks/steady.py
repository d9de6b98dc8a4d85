"""A fixed number of requests that decode together, and what they get from a policy."""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders import encode
from engine.api import Request, SamplingParams, StepReport
from engine.core import Engine
from policies.controller import Controller
from policies.settings import PolicySettings
from specd.bench.prompts import Prompt, prompts

_ROOM: Final = 10  # times the tokens that each gets on average: nobody's text is to end while it is measured
_BESIDE: Final = 16  # rows of prompts in a step in which others decode already, at least
_STEP: Final = 36  # what a plain step costs beside its rows, in rows of a prompt, about
_ROW: Final = 2  # what a text's rows of a step cost, likewise
_ELSEWHERE: Final = 3.0  # median steps of a policy: one that took longer shows what else the machine did
_serial = count(1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt as token ids, and how its answer is drawn."""

    prompt: list[int]
    traffic_class: str
    temperature: float

    def request(self, tokens: int) -> Request:
        """For so many new tokens, whatever they say. The seed is the prompt's: each policy draws the same."""
        sampling = SamplingParams(
            max_tokens=tokens, temperature=self.temperature, ignore_eos=True, seed=sum(self.prompt)
        )
        return Request(
            id=f"r{next(_serial)}", prompt=self.prompt, sampling=sampling, traffic_class=self.traffic_class
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """What some steps gave."""

    tokens: int
    seconds: float
    lengths: dict[int, int]
    """Rounds by the k that was chosen."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def drafting(self) -> float:
        """Share of the rounds that had a draft."""
        return 1.0 - self.lengths.get(0, 0) / max(sum(self.lengths.values()), 1)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Shown":
        """From JSON, in which all keys are strings."""
        lengths = {int(k): rounds for k, rounds in document["lengths"].items()}
        return cls(document["tokens"], document["seconds"], lengths)


def asks(path: Path, found: Iterable[Prompt]) -> list[Ask]:
    """Prompts as the model at this path reads them."""
    listed = list(found)
    ids = encode(path, [prompt.text for prompt in listed])
    return [Ask(tokens, p.traffic_class, p.temperature) for tokens, p in zip(ids, listed, strict=True)]


def of_mix(path: Path, mix: str, number: int) -> list[Ask]:
    """The first so many prompts of a mix of `specd bench`."""
    return asks(path, islice(prompts(mix), number))


def decoding(engine: Engine, batch: Sequence[Ask], tokens: int) -> Iterator[Shown]:
    """Steps in which all of the batch decode, until they have `tokens` each, on average.

    Prompts are read under plain decoding and not counted, so every policy begins at the same place. Nobody's text ends
    meanwhile: so as many decode in the last step as in the first, however unlike the requests are, and what is shown
    is what so many running get. A policy that moves one request on at the cost of others has moved it on further.
    """
    left = len(batch) * tokens
    with started(engine, batch, tokens):
        while left > 0:
            took, report = timed_step(engine)
            assert not any(output.finish for output in report.outputs), "a text ended while it was measured"
            left -= report.committed
            yield Shown(report.committed, took, dict(Counter(each.k for each in report.rounds)))


@contextmanager
def started(engine: Engine, batch: Sequence[Ask], tokens: int) -> Iterator[None]:
    """While entered, all of the batch decode, and nobody's text ends before they have so many tokens on average."""
    meanwhile = sum(len(ask.prompt) for ask in batch) // _BESIDE  # tokens of the first while the last is read
    requests = [ask.request(_ROOM * tokens + meanwhile) for ask in batch]
    with engine.lent(Controller(PolicySettings(kind="off"))):
        for request in requests:
            engine.submit(request)
        while (report := engine.step()).prefill_rows or report.running < len(batch):
            pass
    yield
    for request in requests:
        engine.cancel(request.id)
    engine.step()


def timed_step(engine: Engine) -> tuple[float, StepReport]:
    """A step, and its seconds."""
    begin = time.perf_counter()
    report = engine.step()
    return time.perf_counter() - begin, report


def steps_weight(tokens: int, running: int) -> float:
    """For a bar: so many texts running until they have so many tokens each, in rows of a prompt, about."""
    return tokens * (_STEP + _ROW * running)


def in_batches(of: Sequence[Ask], size: int) -> Iterator[Sequence[Ask]]:
    """One after another, each of so many."""
    return (of[start : start + size] for start in range(0, len(of), size))


def together(shown: Iterable[Shown]) -> Shown:
    """Their sums."""
    all_of = list(shown)
    lengths: Counter[int] = Counter()
    for each in all_of:
        lengths.update(each.lengths)
    return Shown(sum(s.tokens for s in all_of), sum(s.seconds for s in all_of), dict(lengths))


def undisturbed(steps: Sequence[Shown]) -> list[Shown]:
    """The steps of one policy, with the median time in the place of those that took far longer."""
    usual = statistics.median(step.seconds for step in steps)
    return [replace(step, seconds=usual) if step.seconds > _ELSEWHERE * usual else step for step in steps]
