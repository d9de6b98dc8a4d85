"""Throughput and waiting time over concurrency, as a picture. Needs the extra `plot`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specd.bench.sample import Summary

_SUFFIXES = (".png", ".svg", ".pdf")


def unavailable_reason(path: Path) -> str | None:
    """Why no picture can be drawn at this path, or None."""
    if find_spec("matplotlib") is None:
        return (
            "--plot needs matplotlib, which is not installed: pip install 'specd-llm[plot]', or leave it out."
        )
    if path.suffix not in _SUFFIXES:
        return f"--plot {path} does not say which kind of picture: end the name in {', '.join(_SUFFIXES)}."
    return None


def plot(summaries: Sequence[Summary], path: Path) -> None:
    """Write the picture; its format follows from the name's ending."""
    figure = _figure()
    throughput, latency = figure.subplots(1, 2)
    for mix in dict.fromkeys(summary.mix for summary in summaries):
        _draw(throughput, latency, mix, [s for s in summaries if s.mix == mix])
    clients = sorted({summary.concurrency for summary in summaries})
    what = "concurrent clients"
    label_counts(throughput, clients, what, "tokens per second, all clients")
    label_counts(latency, clients, what, "inter-token time, ms")
    figure.savefig(path, dpi=150)


def plot_ramp(phases: Sequence[Summary], path: Path) -> None:
    """Write the picture of a ramp: what each phase gave, in order."""
    figure = _figure()
    throughput, latency = figure.subplots(1, 2)
    numbers = list(range(1, len(phases) + 1))
    throughput.bar(numbers, [phase.tokens_per_second for phase in phases])
    told = [
        (number, phase.inter_token)
        for number, phase in zip(numbers, phases, strict=True)
        if phase.inter_token
    ]
    for name, style in (("p50", "o-"), ("p99", "x--")):
        latency.plot(
            [n for n, _ in told], [getattr(times, name) * 1e3 for _, times in told], style, label=name
        )
    _label_phases(throughput, phases, "tokens per second, all clients")
    _label_phases(latency, phases, "inter-token time, ms")
    latency.legend()
    figure.savefig(path, dpi=150)


def _figure() -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra, and slow to import

    return Figure(figsize=(11, 4.5), layout="constrained")


def _label_phases(axes: Any, phases: Sequence[Summary], quantity: str) -> None:
    names = [f"{phase.concurrency}\n{phase.mix.replace(', ', chr(10))}" for phase in phases]
    axes.set_xticks(range(1, len(phases) + 1), names, fontsize="x-small")
    axes.set_xlabel("clients and mix, phase by phase")
    axes.set_ylabel(quantity)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, axis="y")


def _draw(throughput: Any, latency: Any, mix: str, summaries: Sequence[Summary]) -> None:
    clients, speeds = [s.concurrency for s in summaries], [s.tokens_per_second for s in summaries]
    (line,) = throughput.plot(clients, speeds, "o-", label=mix)
    told = [(s.concurrency, s.inter_token) for s in summaries if s.inter_token is not None]
    for name, style in (("p50", "o-"), ("p99", "x--")):
        values = [getattr(inter_token, name) * 1e3 for _, inter_token in told]
        latency.plot([c for c, _ in told], values, style, color=line.get_color(), label=f"{mix}, {name}")


def label_counts(axes: Any, counts: Sequence[int], what: str, quantity: str) -> None:
    """Axes of a quantity over counts that mostly double."""
    axes.set_xlabel(what)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_ylabel(quantity)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
