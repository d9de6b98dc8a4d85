"""`specd plan`: the formulas, as a table."""

from typing import Final

from rich.console import Console
from rich.table import Table

from policies.cost import DraftCost, StepCosts
from policies.plan import expected_by_position, speedups
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.values import number, numbers
from specd.simulate.machines import BUILTIN, machine

_K_LIMIT: Final = 16
_RUNNING_LIMIT: Final = 4096


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        f"""
What speculation is worth for a draft length k: tokens that a round commits on average, and the speed against
plain decoding. Acceptance is the chance that an examined token is kept, by position if several are given; the
last holds for all after it. Costs are one number, what a drafted token adds to a step in plain decode steps
(drafting it and verifying its row), or a profile: {", ".join(BUILTIN)}, or a file as `specd simulate` takes it. With a
profile it matters how many requests run.""",
        """
        specd plan --acceptance 0.8 --cost 0.08
        specd plan --acceptance 0.4 --cost 0.3 --k-max 4
        specd plan --acceptance 0.7,0.6,0.5 --profile gpu --running 1,16,128,256 --context 1000""",
    )
    parser.add_argument(
        "--acceptance", type=numbers(float, 0, 1), required=True, metavar="A", help="0 to 1; or A1,A2,..."
    )
    cost = parser.add_mutually_exclusive_group(required=True)
    cost.add_argument("--cost", type=number(float, 0, 100), metavar="C", help="plain decode steps, 0 to 100")
    cost.add_argument("--profile", metavar="NAME", help="what steps and drafts cost")
    parser.add_argument(
        "--running",
        type=numbers(int, 1, _RUNNING_LIMIT),
        default=(1,),
        metavar="N,M",
        help="requests that decode together, with a profile (default 1)",
    )
    parser.add_argument(
        "--context",
        type=number(int, 0, 1 << 20),
        default=0,
        metavar="T",
        help="tokens that each attends to, with a profile (default 0)",
    )
    parser.add_argument(
        "--k-max", type=number(int, 1, _K_LIMIT), default=8, metavar="N", help=f"1 to {_K_LIMIT}, default 8"
    )


def run(args: Arguments) -> int:
    """Print the table; the best k of each column is marked."""
    acceptances = [*args.acceptance, *[args.acceptance[-1]] * args.k_max][: args.k_max]
    costs, proposer = _costs(args)
    columns = [
        speedups(costs, proposer, acceptances, running=running, context=args.context)
        for running in args.running
    ]
    one = len(columns) == 1
    heads = ["speedup"] if one else [f"speedup\n{running} running" for running in args.running]
    table = Table("k", "tokens a round", *heads)
    for k, tokens in enumerate(expected_by_position(acceptances)):
        table.add_row(str(k), f"{tokens:.2f}", *(_cell(column, k) for column in columns))
    Console().print(table)
    return 0


def _costs(args: Arguments) -> tuple[StepCosts, str]:
    """Costs, and whose drafts they are."""
    if args.profile is not None:
        host = machine(args.profile)
        return host.costs, host.proposer
    return StepCosts(((1, 1.0), (2, 1.0)), other=DraftCost(args.cost)), ""


def _cell(gains: list[float], k: int) -> str:
    return f"{gains[k]:.2f}" + (" best" if gains.index(max(gains)) == k else "")
