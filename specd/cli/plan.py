"""`specd plan`: the formulas, as a table."""

import argparse

from rich.console import Console
from rich.table import Table

from policies.plan import best_k, expected_tokens, speedup
from specd.cli.parser import Arguments, Parser, describe

_K_LIMIT = 16


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
    parser.add_argument("--acceptance", type=_share, required=True, metavar="A", help="0 to 1")
    parser.add_argument(
        "--cost", type=_cost, required=True, metavar="C", help="plain decode steps, at least 0"
    )
    parser.add_argument("--k-max", type=_length, default=8, metavar="N", help=f"1 to {_K_LIMIT}, default 8")


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


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _cost(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def _length(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _K_LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {_K_LIMIT}")
    return value
