"""Which requests a run makes, and with how many clients at a time."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from specd.bench.prompts import Prompt, blend, prompts
from specd.bench.report import Asked
from specd.bench.sample import Level


class Stage(NamedTuple):
    """A level that is still empty, and what its clients are to ask."""

    level: Level
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
    of_first, of_last = prompts(first, asked.seed), prompts(last, asked.seed)
    for number, clients in enumerate(asked.concurrency):
        share = number / max(len(asked.concurrency) - 1, 1)
        both = blend(of_first, of_last, share)
        yield Stage(Level(_name(first, last, share), clients), islice(both, asked.requests_at(clients)))


def _name(first: str, last: str, share: float) -> str:
    if first == last or share == 0:
        return first
    return last if share == 1 else f"{1 - share:.0%} {first}, {share:.0%} {last}"
