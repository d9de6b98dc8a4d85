"""Which requests a run makes, and with how many clients at a time."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from specd.bench.prompts import Prompt, blend, prompts
from specd.bench.report import Asked
from specd.bench.sample import Level


class Stage(NamedTuple):
    """A level that is still empty, and what its clients are to ask."""

    level: Level
    prompts: Iterator[Prompt]


class Phase(NamedTuple):
    """A part of a ramp."""

    clients: int
    share: float  # of the last mix
    prompts: Iterator[Prompt]


def stages(asked: Asked) -> Iterator[Stage]:
    """In order, each to be run to its end before the next begins."""
    return _phases(asked) if asked.ramp else _levels(asked)


def _levels(asked: Asked) -> Iterator[Stage]:
    for mix in asked.mix:
        endless = prompts(mix, asked.seed)
        for clients in asked.concurrency:
            yield Stage(Level(mix, clients), islice(endless, asked.requests_at(clients)))


def _phases(asked: Asked) -> Iterator[Stage]:
    first, last = asked.mix[0], asked.mix[-1]
    for phase in ramp(first, last, asked.concurrency, asked.requests_at, asked.seed):
        yield Stage(Level(_name(first, last, phase.share), phase.clients), phase.prompts)


def ramp(
    first: str, last: str, concurrency: Sequence[int], requests: Callable[[int], int], seed: int = 0
) -> Iterator[Phase]:
    """One phase for each number of clients, with as many prompts as `requests` says, over which the traffic moves from
    the first mix to the last. A phase's prompts are to be taken before the next phase.
    """
    of_first, of_last = prompts(first, seed), prompts(last, seed)
    for number, clients in enumerate(concurrency):
        share = number / max(len(concurrency) - 1, 1)
        yield Phase(clients, share, islice(blend(of_first, of_last, share), requests(clients)))


def _name(first: str, last: str, share: float) -> str:
    if first == last or share == 0:
        return first
    return last if share == 1 else f"{1 - share:.0%} {first}, {share:.0%} {last}"
