"""`specd plan`: the formulas, as a table."""

import argparse
import contextlib
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table

from policies.plan import best_k, expected_tokens, speedup
from specd.cli.parser import Arguments, Parser, describe

_K_LIMIT: Final = 16


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
What speculation is worth for a draft length k: tokens that a round commits on average, and the speed against
plain decoding. Acceptance is the chance that an examined token is kept. Cost is what one drafted token adds
to a step, in plain decode steps: drafting it and verifying its row.""",
        """
        specd plan --acceptance 0.8 --cost 0.08
        specd plan --acceptance 0.4 --cost 0.3 --k-max 4""",
    )
    parser.add_argument("--acceptance", type=_number(float, 0, 1), required=True, metavar="A", help="0 to 1")
    parser.add_argument(
        "--cost", type=_number(float, 0, 100), required=True, metavar="C", help="plain decode steps, 0 to 100"
    )
    parser.add_argument(
        "--k-max", type=_number(int, 1, _K_LIMIT), default=8, metavar="N", help=f"1 to {_K_LIMIT}, default 8"
    )


def run(args: Arguments) -> int:
    """Print the table; the best k is marked."""
    best = best_k(args.acceptance, args.cost, args.k_max)
    table = Table("k", "tokens a round", "speedup", "")
    for k in range(args.k_max + 1):
        tokens = f"{expected_tokens(args.acceptance, k):.2f}"
        table.add_row(
            str(k), tokens, f"{speedup(args.acceptance, k, args.cost):.2f}", "best" if k == best else ""
        )
    Console().print(table)
    return 0


def _number(kind: type[float], low: float, high: float) -> Callable[[str], float]:
    """A parser for argparse that says what would be right."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")

    return parse
