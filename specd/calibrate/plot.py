"""Speed and waiting by load, with speculation and without, as a picture. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.load import NO_CAP
from policies.profile import Point, Profile
from specd.bench.plot import label_counts


def plot(profile: Profile, path: Path) -> None:
    """Write the picture; its format follows from the name's ending."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra, and slow to import

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speed, waiting = figure.subplots(1, 2)
    for k in sorted({point.k for point in profile.points}):
        _draw(speed, waiting, k, sorted((p for p in profile.points if p.k == k), key=lambda p: p.running))
    _mark(speed, profile)
    running = sorted({point.running for point in profile.points})
    what = "texts that decode together"
    label_counts(speed, running, what, "tokens per second, all texts")
    label_counts(waiting, running, what, "between two tokens of a text, ms (p50, p99)")
    figure.suptitle(f"{profile.subject.processor}, {profile.mix} mix, {profile.subject.dtype}")
    figure.savefig(path, dpi=150)


def _draw(speed: Any, waiting: Any, k: int, points: Sequence[Point]) -> None:
    running, name = [point.running for point in points], f"k = {k}" if k else "off"
    (line,) = speed.plot(running, [point.tokens_per_second for point in points], "o-", label=name)
    waiting.plot(running, [point.p50 * 1e3 for point in points], "o-", color=line.get_color(), label=name)
    waiting.plot(running, [point.p99 * 1e3 for point in points], "x--", color=line.get_color())


def _mark(axes: Any, profile: Profile) -> None:
    if profile.crossover:
        axes.axvline(profile.crossover, color="grey", linestyle=":", label=f"crossover {profile.crossover}")
    if 0 < profile.load.off_above < NO_CAP:
        off = profile.load.off_above
        axes.axvline(off, color="grey", linestyle="--", label=f"off above {off}")
