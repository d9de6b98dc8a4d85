"""What was seen, as a picture. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specd.demo.looks import Look
from specd.demo.story import Told

_NAN: Final = float("nan")
_LOADS: Final = {
    "shrunk": ("#f2c14e", "drafts shortened by load"),
    "off": ("#d1495b", "drafting off by load"),
}
_MARKS: Final = {
    "update": ("#d1495b", "update", "right"),
    "firing delivered": ("#7b2d43", "alert delivered", "right"),
    "rollback": ("#2e7d32", "rollback", "left"),
    "resolved delivered": ("#1b5e20", "end delivered", "left"),
}
"""Colour, name, and how the name is aligned at its line."""
_COLOURS: Final = {"eagle": "#30638e", "ngram": "#edae49"}


def draw(told: Told, path: Path) -> None:
    """Write it; its format follows from the name's ending."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra, and slow to import

    figure = Figure(figsize=(11, 8), layout="constrained")
    running, length, kept, speed = figure.subplots(4, 1, sharex=True, height_ratios=(1, 1, 1.3, 1))
    at = [look.at for look in told.looks]
    running.step(at, [look.running for look in told.looks], where="post", color="#444444")
    length.plot(at, [_NAN if look.k is None else look.k for look in told.looks], color="#30638e")
    for name in sorted({name for look in told.looks for name in look.acceptance}):
        rates = [look.acceptance.get(name, _NAN) for look in told.looks]
        head = name == "eagle"  # what the update is about, and less noisy than lookups, which are rare
        kept.plot(
            at, rates, color=_COLOURS.get(name), label=name, lw=1.6 if head else 0.8, alpha=1 if head else 0.6
        )
    speed.plot(at, [look.tokens_per_second for look in told.looks], color="#00798c")
    for axes, quantity in (
        (running, "requests running"),
        (length, "draft length k"),
        (kept, "first token accepted"),
        (speed, "tokens per second"),
    ):
        _dress(axes, quantity, told, named=axes is running)
    kept.set_ylim(0, 1)
    speed.set_xlabel("seconds")
    running.set_title("specd: a load ramp, and an update that ruins a draft", loc="left")
    for axes in (running, kept):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="upper left", fontsize="small", framealpha=0.9)
    _name_marks(running, told)
    figure.savefig(path, dpi=150)


def _dress(axes: Any, quantity: str, told: Told, *, named: bool) -> None:
    """named: whether the legend is to tell of the load."""
    axes.set_ylabel(quantity)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    for load, (colour, text) in _LOADS.items():
        for number, (first, last) in enumerate(_spans(told.looks, load)):
            axes.axvspan(
                first, last, color=colour, alpha=0.18, lw=0, label=text if named and not number else ""
            )
    for name, (colour, *_) in _MARKS.items():
        if (at := told.when(name)) is not None:
            axes.axvline(at, color=colour, lw=1.2, ls="--")


def _name_marks(axes: Any, told: Told) -> None:
    """Beside their lines, one below the other: they may be close together."""
    height = 1.0
    for name, (colour, text, aligned) in _MARKS.items():
        if (at := told.when(name)) is not None:
            axes.annotate(
                text,
                (at, height),
                xycoords=("data", "axes fraction"),
                xytext=(4 if aligned == "left" else -4, -2),
                textcoords="offset points",
                ha=aligned,
                va="top",
                color=colour,
                fontsize="small",
            )
            height -= 0.16


def _spans(looks: Sequence[Look], load: str) -> list[tuple[float, float]]:
    """From when to when the load was in this state."""
    spans: list[tuple[float, float]] = []
    began: float | None = None
    for look in looks:
        if look.load == load:
            began = look.at if began is None else began
        elif began is not None:
            spans.append((began, look.at))
            began = None
    return spans if began is None else [*spans, (began, looks[-1].at)]
