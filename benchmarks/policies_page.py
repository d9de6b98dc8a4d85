"""What `benchmarks.policies` found: its claims, its page, its document, its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.claims import Claim
from benchmarks.day import Day
from benchmarks.paper import section
from benchmarks.poor import Poor
from benchmarks.price import RUNNING, Control, Deciding
from benchmarks.regret import Point
from benchmarks.rivals import ADAPTIVE, PLAIN

_REGRET: Final = 0.97
_NO_SINGLE_K: Final = 1.05  # on the mixed mix, where some requests want long drafts and others none
_MANY_WANTS: Final = ("mixed", (4, 8))
_NEVER_A_LOSS: Final = 0.98
_DAY: Final = 0.92
_DAY_PLAIN: Final = 0.85
_POOR: Final = 0.99
_DECISION: Final = 150e-6
_NEAR_LINEAR: Final = 1.25  # what a sequence costs among 4096, in what it costs among 256
_CONTROL: Final = 0.02


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """Everything that was measured; what was not asked for is empty."""

    points: Sequence[Point] = ()
    day: Day | None = None
    poor: Sequence[Poor] = ()
    prices: Mapping[tuple[int, int], Deciding] = field(default_factory=dict)  # by (sequences, options)
    control: Control | None = None

    def claims(self) -> list[Claim]:
        """What must be reached."""
        return [*self._regret(), *self._day(), *self._poor(), *self._price()]

    def page(self) -> list[str]:
        """For people."""
        claims = section(
            "", ["claim", "ours", "other", "ratio", "bound", ""], [c.cells for c in self.claims()]
        )
        return [*claims, *self._points_table(), *self._day_table(), *self._price_table()]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "claims": [claim.document() for claim in self.claims()],
            "points": [point.document() for point in self.points],
            "day": None if self.day is None else self.day.document(),
            "poor_draft": [each.document() for each in self.poor],
            "decide_seconds": [
                {"sequences": n, "options": options, **deciding._asdict()}
                for (n, options), deciding in self.prices.items()
            ],
            "control": None if self.control is None else asdict(self.control) | {"share": self.control.share},
        }

    def _regret(self) -> list[Claim]:
        found = []
        for point in self.points:
            where = f"{point.mix}, {point.running} running"
            mix, running = _MANY_WANTS
            bound = _NO_SINGLE_K if point.mix == mix and point.running in running else _REGRET
            what = f"{where}: tokens/s over the best static ({point.best})"
            found.append(_ratio(what, point.against(point.best), point.shown[point.best].rate, bound))
        for point in self.points:
            what = f"{point.mix}, {point.running} running: tokens/s over k = 0"
            found.append(_ratio(what, point.against(PLAIN), point.shown[PLAIN].rate, _NEVER_A_LOSS))
        return found

    def _day(self) -> list[Claim]:
        if self.day is None:
            return []
        ours, best = self.day.total(ADAPTIVE), self.day.best
        return [
            Claim(
                f"seconds of a day, over the best static ({best})",
                ours,
                self.day.total(best),
                _DAY,
                at_most=True,
            ),
            Claim("seconds of a day, over k = 0", ours, self.day.total(PLAIN), _DAY_PLAIN, at_most=True),
        ]

    def _poor(self) -> list[Claim]:
        return [
            Claim(
                f"creative with a poor draft, {each.running} running: tokens/s over k = 0",
                each.against_plain,
                1.0,
                _POOR,
            )
            for each in self.poor
        ]

    def _price(self) -> list[Claim]:
        found = []
        if {(256, 1), (4096, 1)} <= self.prices.keys():
            many, some = self.prices[4096, 1].mean, self.prices[256, 1].mean
            found += [
                Claim(
                    "microseconds of a decision for 256 sequences, mean of many steps",
                    1e6 * some,
                    1e6 * _DECISION,
                    1.0,
                    at_most=True,
                ),
                Claim(
                    "microseconds of a decision a sequence, of 4096 over of 256",
                    1e6 * many / 4096,
                    1e6 * some / 256,
                    _NEAR_LINEAR,
                    at_most=True,
                ),
            ]
        if self.control is not None:
            spent = self.control.share * self.control.step
            what = f"milliseconds of control in a step, {RUNNING} running"
            found.append(Claim(what, 1e3 * spent, 1e3 * self.control.step, _CONTROL, at_most=True))
        return found

    def _points_table(self) -> list[str]:
        header = [
            "mix",
            "running",
            "k = 0",
            "best static",
            "its k",
            "adaptive",
            "over best",
            "over k = 0",
            "its k's",
        ]
        rows = [
            [
                point.mix,
                f"{point.running}",
                f"{point.shown[PLAIN].rate:.0f}",
                f"{point.shown[point.best].rate:.0f}",
                point.best.removeprefix("k = "),
                f"{point.shown[ADAPTIVE].rate:.0f}",
                f"{point.against(point.best):.3f}",
                f"{point.against(PLAIN):.3f}",
                _shares(point.lengths),
            ]
            for point in self.points
        ]
        words = (
            "Tokens per second while so many decode; policies take turns of three steps, each with requests of its own."
            " All static k from 0 to 8 are screened; the best two meet the adaptive policy and k = 0 in a final of"
            " three times as many tokens, whose figures these are. A step that took more than three times its policy's"
            " median counts as that: the machine was elsewhere. Last: how often the adaptive policy chose which k:"
        )
        return section(words, header, rows) if rows else []

    def _day_table(self) -> list[str]:
        if self.day is None:
            return []
        names = sorted(self.day.seconds, key=self.day.total)
        header = ["policy", "seconds", *(f"{clients}" for clients in self.day.clients)]
        rows = [
            [name, f"{self.day.total(name):.1f}", *(f"{seconds:.1f}" for seconds in self.day.phases(name))]
            for name in names
        ]
        words = (
            "Seconds of a day, prompts included, and of its phases by number of clients, in which the traffic moves "
            "from chats to copies. All static k had a day of short answers before, and the best are in this one: "
            + ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.day.screened.items())
            + "."
        )
        return section(words, header, rows)

    def _price_table(self) -> list[str]:
        lines = []
        if self.prices:
            counts = sorted({options for _, options in self.prices})
            rows = [
                [f"{n}", *(_microseconds(self.prices[n, options]) for options in counts)]
                for n in sorted({n for n, _ in self.prices})
            ]
            header = ["sequences", *(f"options each: {options}" for options in counts)]
            words = (
                "Microseconds of a decision in one thread, k at most 8: mean and median of many steps, in the best of "
                "three runs. Where nothing is new since the step before, what was decided stands; what was learned is "
                "new in every third step."
            )
            lines += section(words, header, rows)
        if self.control is not None:
            each = asdict(self.control)
            row = [f"{1e3 * seconds:.3f}" for seconds in each.values()]
            lines += section(f"Milliseconds within a step, {RUNNING} running:", list(each), [row])
        if self.poor:
            rows = [[f"{each.running}", f"{each.first:.3f}", f"{each.drafting:.4f}"] for each in self.poor]
            words = (
                "Share of rounds with a draft on the creative mix, by a head whose weights are in disorder:"
            )
            lines += section(words, ["running", "on meeting it", "after that"], rows)
        return lines


def _microseconds(deciding: Deciding) -> str:
    return f"{1e6 * deciding.mean:.0f}, {1e6 * deciding.median:.0f}"


def _ratio(what: str, share: float, other: float, bound: float) -> Claim:
    """A share of another rate, as a rate."""
    return Claim(what, share * other, other, bound)


def _shares(lengths: Mapping[int, int]) -> str:
    total = max(sum(lengths.values()), 1)
    return ", ".join(
        f"{k}: {rounds / total:.0%}" for k, rounds in sorted(lengths.items()) if rounds / total >= 0.02
    )


def plot(figures: PolicyFigures, file: Path) -> None:
    """Regret by concurrency and mix, and the day as a curve."""
    from matplotlib.figure import Figure  # noqa: PLC0415  slow to import

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    regret, day = figure.subplots(1, 2)
    _plot_points(regret, figures.points)
    if figures.day is not None:
        _plot_day(day, figures.day)
    figure.savefig(file, dpi=150)


def _plot_points(axes: Any, points: Sequence[Point]) -> None:
    for mix in dict.fromkeys(point.mix for point in points):
        of_mix = [point for point in points if point.mix == mix]
        running = [point.running for point in of_mix]
        (line,) = axes.plot(running, [p.against(p.best) for p in of_mix], "o-", label=f"{mix}, best static")
        plain = [p.against(PLAIN) for p in of_mix]
        axes.plot(running, plain, "x:", color=line.get_color(), label=f"{mix}, k = 0")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(_REGRET, color="grey", linestyle="--", linewidth=0.8)
    running = sorted({point.running for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(running, [str(n) for n in running])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("requests that decode together")
    axes.set_ylabel("tokens per second of the adaptive policy, over")
    axes.grid(alpha=0.3)
    if points:
        axes.legend(fontsize="small")


def _plot_day(axes: Any, day: Day) -> None:
    for name in dict.fromkeys((ADAPTIVE, day.best, PLAIN)):
        done = [sum(day.phases(name)[: at + 1]) for at in range(len(day.clients))]
        axes.plot([0, *done], range(len(done) + 1), "o-", label=f"{name}: {day.total(name):.0f} s")
    axes.set_yticks(range(1, len(day.clients) + 1), [str(clients) for clients in day.clients])
    axes.set_xlabel("seconds until the phase is done")
    axes.set_ylabel("phases of a day, by clients; chats become copies")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
