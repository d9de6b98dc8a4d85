"""What the load generator asks for.

copy      repeat or edit a given text: the case in which prompt lookup shines
chat      questions of daily life: prose with few repeats
code      write, explain or review programs
creative  make up what nobody could guess, at temperature 1: the case in which no draft is worth its time
mixed     copy, chat and code in turn
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MIXES = ("copy", "chat", "code", "creative", "mixed")
_IN_TURN = ("copy", "chat", "code")
_TEMPERATURES = {"creative": 1.0}  # the others are greedy
_SEPARATOR = "\n---\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message and the traffic class it counts under."""

    traffic_class: str
    text: str
    temperature: float = 0.0


@cache
def texts(traffic_class: str) -> tuple[str, ...]:
    """The dozen texts of copy, chat, code or creative, in the order of their file."""
    source = files("specd.bench").joinpath("mixes", f"{traffic_class}.txt")
    return tuple(source.read_text("utf-8").strip().split(_SEPARATOR))


def prompts(mix: str, seed: int = 0) -> Iterator[Prompt]:
    """Prompts without end, always the same for the same mix and seed.

    Every prompt begins with a number of its own, so that a server's prefix cache cannot skip its prefill.
    """
    order = random.Random(seed)  # noqa: S311  an order, not a secret
    for number, (traffic_class, text) in enumerate(_forever(mix, order)):
        temperature = _TEMPERATURES.get(traffic_class, 0.0)
        yield Prompt(traffic_class, f"Task {seed}-{number}. {text}", temperature)


def blend(first: Iterator[Prompt], last: Iterator[Prompt], share: float) -> Iterator[Prompt]:
    """Prompts of both, mingled: of every beginning, `share` is of the last, to a prompt."""
    due = 0.5
    while True:
        due += share
        yield next(last if due >= 1 else first)
        due -= due >= 1


def _forever(mix: str, order: random.Random) -> Iterator[tuple[str, str]]:
    kinds = _IN_TURN if mix == "mixed" else (mix,)
    while True:
        shuffled = [order.sample(texts(kind), len(texts(kind))) for kind in kinds]
        for together in zip(*shuffled, strict=True):
            yield from zip(kinds, together, strict=True)
