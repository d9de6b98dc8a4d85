"""What came of each policy, as a table for people and as JSON for everything else."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from policies.simulate import Outcome
from specd.simulate.field import Field
from specd.tables import figures

_COLUMNS = (
    "policy",
    "tokens\nper s",
    "inter-token\nmean ms",
    "\np99",
    "TTFT\nmean s",
    "\np99",
    "levels\na round",
    "tokens\na round",
    "kept of\ndrafted",
)


def table(outcomes: Sequence[Outcome]) -> Table:
    """One line a policy."""
    return figures(_COLUMNS, map(cells, outcomes))


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Of one policy, as `table` has them."""
    rounds = max(sum(outcome.levels.values()), 1)
    return (
        outcome.policy,
        f"{outcome.tokens_per_second:.1f}",
        f"{outcome.inter_token_mean * 1e3:.2f}",
        f"{outcome.inter_token_p99 * 1e3:.1f}",
        f"{outcome.first_token_mean:.2f}",
        f"{outcome.first_token_p99:.2f}",
        f"{outcome.drafted / rounds:.2f}",
        f"{(outcome.tokens - outcome.requests) / rounds:.2f}",
        f"{outcome.accepted / outcome.drafted:.2f}" if outcome.drafted else "-",
    )


def decisions(outcomes: Sequence[Outcome]) -> Table:
    """How often each length was chosen, in percent of rounds."""
    lengths = sorted({k for outcome in outcomes for k in outcome.levels})
    rows = [[outcome.policy, *_shares(outcome, lengths)] for outcome in outcomes]
    return figures(["% of rounds at k =", *map(str, lengths)], rows)


def document(command: str, field: Field, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON result. Times in seconds."""
    return {
        "command": command,
        "machine": asdict(field.machine),
        "acceptance": asdict(field.acceptance),
        "load_table": field.load_settings().table,
        "policies": [asdict(outcome) for outcome in outcomes],
    }


def _shares(outcome: Outcome, lengths: Sequence[int]) -> list[str]:
    rounds = max(sum(outcome.levels.values()), 1)
    shares = [outcome.levels.get(k, 0) / rounds * 100 for k in lengths]
    return [f"{share:.1f}" if share else "" for share in shares]
