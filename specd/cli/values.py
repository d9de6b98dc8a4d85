"""What options take, and refusals that say what would be right."""

import contextlib
import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from specd.bench.plot import unavailable_reason
from specd.errors import UserError


def count(text: str) -> int:
    """For argparse: 1, 2, ..."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """For argparse: the same with commas between them."""
    return tuple(count(part.strip()) for part in text.split(","))


def number(kind: type[float], low: float, high: float, unit: str = "") -> Callable[[str], float]:
    """For argparse: a number of this kind, bounds included. unit: of what, for the refusal."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        what = "a whole number" if kind is int else "a number"
        raise ArgumentTypeError(f"{text!r} is not {what}{unit and f' of {unit}'} from {low} to {high}")

    return parse


def numbers(kind: type[float], low: float, high: float) -> Callable[[str], tuple[float, ...]]:
    """For argparse: the same with commas between them."""
    one = number(kind, low, high)
    return lambda text: tuple(one(part.strip()) for part in text.split(","))


def require_writable(file: Path | None, picture: Path | None) -> None:
    """Find out before the minutes of work, not after, that a result has nowhere to go. Raises UserError."""
    for path in filter(None, (file, picture)):
        if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
            raise UserError(f"{path} cannot be written: name a file in a directory that exists and is yours.")
    if picture and (reason := unavailable_reason(picture)):
        raise UserError(reason)
