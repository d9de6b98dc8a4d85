"""Traffic's results, as a page and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.paper import section
from benchmarks.traffic_cases import FULL, NOISE, SWITCH, Noisy, Row
from policies.simulate import Machine
from specd.simulate.field import OFF
from specd.simulate.report import cells

_HEADER: Final = (
    *("policy", "tokens/s", "mean inter-token, ms", "p99, ms", "mean TTFT, s", "p99, s"),
    *("levels a round", "tokens a round", "kept of drafted"),
)


def page(machines: Mapping[str, Machine], rows: Sequence[Row], noisy: Sequence[Noisy]) -> list[str]:
    """For people, without its title."""
    claim_header = ["claim", "ours", "other", "ratio", "bound", ""]
    lines = [_ABOUT, "", *(f"Costs, {name}: {_costs(machine)}\n" for name, machine in machines.items())]
    lines += ["![Mean inter-token time by policy](traffic.png)", ""]
    lines += section(
        "Adaptive against the best of all others in each row:",
        claim_header,
        [claim.cells for row in rows for claim in row.claims()],
    )
    lines += section(_ABOUT_NOISE, claim_header, [case.claim().cells for case in noisy])
    for row in rows:
        lines += section(f"{row.name} machines:", _HEADER, [cells(outcome) for outcome in row.outcomes])
    return lines


_ABOUT: Final = f"""The two Azure traces, an hour each, at their own rate and at 2 and 4 times it. Requests are dealt
in turn to as many machines as keep each at most {FULL:.0%} full at the trace's own rate without drafts (as many as in
brackets), and one of them is simulated: this host alone could not read the prompts. At 4 times the rate it is as full
as it can be. Where it is not full, tokens/s are those that are asked for, by any policy, and the mean inter-token time
is what tells policies apart; where it is, both do.

`adaptive` is the daemon's own controller, without a load table; it learns acceptance and costs as it goes. `table`
drafts by the number running, and is told the mean acceptance and the true costs. Every policy meets the same texts.
Mean inter-token time is per token, p99 is between two arrivals of text. `gpu` is made up."""

_ABOUT_NOISE: Final = f"""Costs that are each wrong by up to {NOISE:.0%} at the start, steps that take up to
{NOISE:.0%} more or less, and acceptance drawn anew for every text every {SWITCH} tokens: against the best static k in
hindsight, with a fixed number of requests running, answers of the conversation trace:"""


def _costs(host: Machine) -> str:
    steps = ", ".join(f"{rows} rows {cost * 1e3:.1f}" for rows, cost in host.costs.steps)
    draft = host.costs.draft(host.proposer)
    return (
        f"a step of {steps} ms, and on along the last line; a draft {draft.fixed * 1e3:.2f} ms and"
        f" {draft.level * 1e3:.2f} ms a level; {host.costs.key * 1e9:.0f} ns for each token attended to,"
        f" {host.prompt_key * 1e9:.0f} ns in prompts;"
        f" up to {host.max_running} requests and {host.max_batch_tokens} rows, {host.rows_beside_decodes} of prompts"
        " beside decodes."
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Mean inter-token time by policy, in that of off."""
    from matplotlib.figure import Figure  # noqa: PLC0415  slow to import

    figure = Figure(figsize=(12, 7), layout="constrained")
    panels = list(dict.fromkeys((row.trace, row.profile) for row in rows))
    grid = figure.subplots(2, 2, squeeze=False).flat
    for axes, (trace, profile) in zip(grid, panels, strict=False):
        for row in (row for row in rows if (row.trace, row.profile) == (trace, profile)):
            plain = row.of(OFF).inter_token_mean
            names = [outcome.policy for outcome in row.outcomes]
            axes.plot(names, [o.inter_token_mean / plain for o in row.outcomes], "o-", label=f"{row.rate}x")
        axes.set_title(f"{trace}, {profile}")
        axes.set_ylabel("mean inter-token time, of off")
        axes.tick_params(axis="x", rotation=45)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
