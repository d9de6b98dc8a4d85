"""What the alarm watches of the daemon itself: its engine, its memory, its reloads."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.api import StepReport
from specd.alerts.events import utc
from specd.alerts.finding import Finding, Verdict

SOURCE: Final = "health"

_DEATHS_COUNT: Final = 600.0
_PREEMPTIONS_COUNT: Final = 10.0
_PRESSED_FOR: Final = 30.0
_RELIEVED_FOR: Final = 60.0
_LITTLE: Final = 0.05
_OURS: Final = "Requests that were in it were ended with an error."
_THEIRS: Final = (
    "Its requests never came by here, and are vLLM's own to answer for; specd waits for it to be back."
)
_MEMINFO: Final = Path("/proc/meminfo")


def host_memory() -> float | None:
    """The part of this host's memory that is available; None where nobody tells."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return found["MemAvailable"] / found["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        return None


class Health:
    """Findings about the daemon, each said at every look, so that each ends by itself."""

    def __init__(self, available: Callable[[], float | None] = host_memory) -> None:
        """`available`: the part of the host's memory that is."""
        self._available = available
        self._deaths: deque[tuple[float, str]] = deque()
        self._foreign = False
        self._preemptions: deque[tuple[float, int]] = deque()
        self._refused: str | None = None

    def engine_died(self, why: str, now: float, *, foreign: bool) -> None:
        """The engine process is being replaced. foreign: it stands beside an engine that others run."""
        self._deaths.append((now, why))
        self._foreign = foreign

    def observe(self, report: StepReport, now: float) -> None:
        """Take in one engine step."""
        if report.preempted:
            self._preemptions.append((now, report.preempted))

    def reloaded(self, error: str | None) -> None:
        """A reload was taken over, or refused for this reason."""
        self._refused = error

    def findings(self, now: float) -> list[Finding]:
        """How things stand."""
        _forget(self._deaths, now, _DEATHS_COUNT)
        _forget(self._preemptions, now, _PREEMPTIONS_COUNT)
        return [self._engine(), self._reload(), self._cache(), self._host()]

    def _engine(self) -> Finding:
        if not self._deaths:
            return _finding("SpecdEngineRestarted", "The engine has not died for ten minutes")
        at, why = self._deaths[-1]
        times = "once" if len(self._deaths) == 1 else f"{len(self._deaths)} times"
        what = f"vLLM, or the process beside it, has gone {times} within ten minutes: {why}"
        if not self._foreign:
            what = f"The engine died {times} within ten minutes, and was started again: {why}"
        return _finding(
            "SpecdEngineRestarted",
            what,
            f"The last time was at {utc(at)}. {_THEIRS if self._foreign else _OURS}",
            breached=True,
            since=self._deaths[0][0],
        )

    def _reload(self) -> Finding:
        if self._refused is None:
            return _finding("SpecdConfigReloadFailed", "The last reload of the config was taken over")
        return _finding(
            "SpecdConfigReloadFailed",
            "A reload of the config was refused: the running config is not what the files say",
            self._refused,
            breached=True,
        )

    def _cache(self) -> Finding:
        count = sum(times for _, times in self._preemptions)
        return _finding(
            "SpecdMemoryPressure",
            f"Running texts gave up their KV blocks {count} times in the last ten seconds",
            "Each is computed anew later. engine.kv_mib is small for the load, or engine.max_running large.",
            breached=count > 0,
            for_seconds=_PRESSED_FOR,
            keep_seconds=_RELIEVED_FOR,
            memory="kv",
        )

    def _host(self) -> Finding:
        part = self._available()
        known = part is not None
        return _finding(
            "SpecdMemoryPressure",
            f"{part:.1%} of the host's memory is available" if known else "The host does not tell its memory",
            "The kernel will soon end a process to get some, and the engine is the largest.",
            breached=part is not None and part < _LITTLE,
            for_seconds=_PRESSED_FOR,
            keep_seconds=_RELIEVED_FOR,
            memory="host",
        )


def _finding(
    name: str,
    summary: str,
    description: str = "",
    *,
    breached: bool = False,
    since: float | None = None,
    for_seconds: float = 0.0,
    keep_seconds: float = 0.0,
    **labels: str,
) -> Finding:
    return Finding(
        SOURCE,
        {"alertname": name, "severity": "warning", **labels},
        Verdict.BREACHED if breached else Verdict.FINE,
        {"summary": summary, "description": description or summary},
        for_seconds,
        keep_seconds,
        since,
    )


def _forget(times: deque[tuple[float, str]] | deque[tuple[float, int]], now: float, after: float) -> None:
    while times and not 0 <= now - times[0][0] < after:
        times.popleft()
