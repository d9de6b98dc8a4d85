"""Speed and waiting by policy, as a picture. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path

from policies.simulate import Outcome


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the picture; its format follows from the name's ending."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra, and slow to import

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speed, latency = figure.subplots(1, 2)
    names = [outcome.policy for outcome in outcomes]
    speed.barh(names, [outcome.tokens_per_second for outcome in outcomes])
    speed.set_xlabel("tokens per second")
    latency.barh(names, [outcome.inter_token_p99 * 1e3 for outcome in outcomes], color="0.85", label="p99")
    latency.barh(names, [outcome.inter_token_mean * 1e3 for outcome in outcomes], label="mean")
    latency.set_xlabel("inter-token time, ms")
    latency.legend()
    for axes in (speed, latency):
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)
