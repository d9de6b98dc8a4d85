"""The demo on a terminal: a screen that moves, or lines where nobody looks at one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from specd.demo.looks import Look
from specd.demo.story import Phase, Screen, Told, Tone
from specd.tables import figures

_STYLES: Final[dict[Tone, str]] = {"plain": "", "good": "green", "bad": "red"}
_LOADS: Final = {"full": "green", "shrunk": "yellow", "off": "red"}
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_CHART_FROM: Final = 34
"""Characters of a line that are not the chart."""


class Lines:
    """A line for each thing that happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._act = 0

    def act(self, title: str) -> None:
        """See Screen."""
        self._act += 1
        self._console.print(
            f"\n{self._act}. {title}", style="bold", highlight=False, markup=False, soft_wrap=True
        )

    def say(self, at: float, text: str, tone: Tone = "plain") -> None:
        """See Screen."""
        self._console.print(_note(at, text, tone), soft_wrap=True)

    def look(self, look: Look) -> None:
        """Nothing happened."""


class Moving(Lines):
    """The same lines, and below them how things stand."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self._live = live
        self._looks: list[Look] = []

    def look(self, look: Look) -> None:
        """See Screen."""
        self._looks.append(look)
        self._live.update(_panel(self._looks, self._console.width), refresh=True)


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """What suits the console."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Moving(console, live)


def summary(told: Told) -> Iterator[RenderableType]:
    """What came of it."""
    yield Rule("the load ramp", style="dim")
    yield _table(told.phases)
    yield Rule("the alarm", style="dim")
    yield from (Text(line) for line in _alarm(told))
    yield Text(f"{told.answers} chats were answered meanwhile, {told.failures} of them with an error.")


def _table(phases: Sequence[Phase]) -> Table:
    names = sorted({name for phase in phases for name in phase.acceptance})
    header = ("clients", "load", "k", "tokens/s", *(f"{name}\naccepted" for name in names))
    return figures(header, (_cells(phase, names) for phase in phases), named=False)


def _cells(phase: Phase, names: Sequence[str]) -> list[str]:
    rates = (phase.acceptance.get(name) for name in names)
    return [
        str(phase.clients),
        phase.load,
        _number(phase.k, ".1f"),
        f"{phase.tokens_per_second:.0f}",
        *(_number(rate, ".2f") for rate in rates),
    ]


def _alarm(told: Told) -> Iterator[str]:
    update, rollback = told.when("update"), told.when("rollback")
    alike, words = told.same_words
    yield f"The update changed {words - alike} of {words} words of an answer, and ruined the draft."
    for what, event, since in (
        ("Updated: an alert fired", "firing", update),
        ("Updated: the webhook came", "firing delivered", update),
        ("Rolled back: the alert ended", "resolved", rollback),
        ("Rolled back: the webhook came", "resolved delivered", rollback),
    ):
        yield f"{what} {_after(told.when(event), since)}."


def _after(at: float | None, event: float | None) -> str:
    if at is None or event is None:
        return "not while the demo looked"
    return f"{at - event:.1f} s later" if at > event else f"{event - at:.1f} s before that was answered"


def _note(at: float, text: str, tone: Tone) -> Text:
    return Text.assemble((f"{at:6.1f} s  ", "dim"), (text, _STYLES[tone]))


def _panel(looks: Sequence[Look], width: int) -> Panel:
    room = max(width - _CHART_FROM, 8)
    now = looks[-1]
    rows = Table.grid(padding=(0, 1))

    def row(name: str, shown: str, values: Sequence[float | None], most: float | None = None) -> None:
        rows.add_row(f"{name:<16}", f"{shown:>6}", spark(squeezed(values, room), most))

    row("running", str(now.running), [look.running for look in looks])
    row("k", _number(now.k, ".1f"), [look.k for look in looks])
    row("tokens/s", f"{now.tokens_per_second:.0f}", [look.tokens_per_second for look in looks])
    for name in sorted({name for look in looks for name in look.acceptance}):
        rates = [look.acceptance.get(name) for look in looks]
        row(f"{name} accepted", _number(rates[-1], ".2f"), rates, 1.0)
    load = Text.assemble("load ", (now.load, _LOADS.get(now.load, "")))
    return Panel(Group(load, rows), title=f"{now.at:.0f} s", title_align="left", border_style="dim")


def squeezed(values: Sequence[float | None], room: int) -> list[float | None]:
    """All of them in so many places: where there are more, a place holds the mean of those that are known."""
    size = max(-(-len(values) // room), 1)
    return [_mean(values[at : at + size]) for at in range(0, len(values), size)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def spark(values: Sequence[float | None], most: float | None = None) -> str:
    """As blocks; most: what is a whole one, None for the highest. A space where nothing is known."""
    whole = most or max((value for value in values if value is not None), default=0.0) or 1.0
    steps = len(_BLOCKS) - 2
    return "".join(
        " " if value is None else _BLOCKS[1 + round(steps * min(value / whole, 1.0))] for value in values
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
