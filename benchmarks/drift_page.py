"""Drift's results, as a page and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.drift_canary import CONFIDENCE, TOLERANCE, Judged
from benchmarks.drift_cases import CLASSES, FalseAlerts
from benchmarks.drift_traffic import SEGMENT, Traffic
from benchmarks.paper import section
from policies.drift import DriftSettings

if TYPE_CHECKING:
    from benchmarks.drift import Result

_HEADER: Final = (
    *("change", "requests to the alert, p50", "p90", "last run", "acceptance lost by then"),
    *("alerts before the change, or of another class", "called", "bound", ""),
)
_CANARY: Final = ("update", "drafted tokens", "runs", "called a fall", "bound", "")
_USUAL: Final = Traffic()
_SETTINGS: Final = DriftSettings()


def page(
    results: Sequence["Result"],
    false: Mapping[str, FalseAlerts],
    replays: Sequence[Judged],
    spread: tuple[float, float],
) -> list[str]:
    """For people, without its title. spread: of requests' rates, and what independent tokens would make of it."""
    about = f"""Requests are simulated, and go through the lines that the daemon runs. The acceptance of each is its own
(beta-distributed, standard deviation {_USUAL.spread:g} around its class's mean), and wanders within it (by
{_USUAL.wander:g}, anew every {SEGMENT} rounds); requests have {_USUAL.rounds:g} rounds in the middle, log-normal. So
the rates of requests at 0.7 spread by {spread[0]:.3f}, where independent tokens of one coin would spread by
{spread[1]:.3f}. A change comes behind 500 requests of the class, whose mean is 0.7 unless it says otherwise. In the
first rows it is of position 1 alone, in one class of four, while the traffic of the others goes on; in all others of
every position's chance, in a class of its own. Settings are the defaults: at most one false alarm in
{_SETTINGS.requests_per_false_alarm:g} requests of a stratum, a fall of at least {_SETTINGS.min_drop:g}. What decides
how soon a fall is found is how much requests differ: see the last rows."""
    bound = f"""Without a change: alerts of any kind, all strata. Classes are at {", ".join(map(str, CLASSES))}, the
two of another mix at 0.75 and 0.45. By the bound on false alarms there are to be at most requests /
{_SETTINGS.requests_per_false_alarm:g} of them on average, for falls and as many for loops and collapses each:"""
    canary = f"""The canary, by the comparison that the daemon runs, with its defaults (a fall of more than
{TOLERANCE:g}, certain to {CONFIDENCE:g}): updates that leave acceptance at 0.6, or lower it. How many rounds come
out alike before and after is not known beforehand: the contexts are the same, so that most of what is guessed right
stays right."""
    rows = [
        (
            name,
            f"{each.runs}",
            f"{each.requests:,}",
            f"{each.alerts}",
            f"{each.runs * each.requests / _SETTINGS.requests_per_false_alarm:.1f}",
            f"{each.highest:.2f}",
        )
        for name, each in false.items()
    ]
    header = (
        "case",
        "runs",
        "requests of each",
        "false alerts",
        "bound on their mean",
        "highest score (1 alerts)",
    )
    return [
        about,
        "",
        "![Requests from a step to the alert](drift.png)",
        "",
        *section(
            "Requests of the class from the change to the alert:", _HEADER, [one.cells for one in results]
        ),
        *section(bound, header, rows),
        *section(canary, _CANARY, [one.cells for one in replays]),
    ]


def plot(results: Sequence["Result"], file: Path) -> None:
    """Which share of runs has alerted, by requests since the change."""
    import matplotlib as mpl  # noqa: PLC0415  takes a second

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for place, drop in enumerate(("step of -0.10", "step of -0.25")):
        for result in results:
            if result.case.name == drop or result.case.name.startswith(f"{drop}, requests"):
                found = np.sort(result.found.requests)
                share = np.arange(1, len(found) + 1) / len(found)
                width = 2.5 if result.case.name == drop else 1.0
                axes[place].step(
                    found, share, label=result.case.name.removeprefix(f"{drop}, "), linewidth=width
                )
        axes[place].set(xlabel="requests of the class since the change", ylabel="share of runs with an alert")
        axes[place].set_title(drop)
        axes[place].set_xscale("log")
        axes[place].legend(fontsize=8)
        axes[place].grid(alpha=0.3)
    figure.savefig(file, dpi=110)
    plt.close(figure)
