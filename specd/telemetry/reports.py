"""Request reports: a JSON line for each finished request, in files of bounded size. Never any text."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from policies.drift import Shown
from specd.config.telemetry import TelemetrySection
from specd.telemetry.behind import Append, Behind
from specd.telemetry.families import counter
from specd.telemetry.finished import Finished

log: Final = logging.getLogger(__name__)

Outcome = Literal["written", "lost"]

_INTERVAL: Final = 0.5
_MOST_WAITING: Final = 10_000
_MIB: Final = 1 << 20
_NOBODY: Final = "none"


def line_of(request: Finished) -> dict[str, Any]:
    """The report of a request. Where several drafted for it, the line tells of the one with most evidence, and `also`
    of the others.
    """
    told = [_drafts(shown) for shown in sorted(request.shown(), key=lambda one: -sum(one.examined))]
    first, *also = told or [{"proposer": _NOBODY, "examined": (), "accepted": ()}]
    return {
        "t": round(request.t, 3),
        "request": request.request,
        "class": request.traffic_class,
        "tenant": request.tenant,
        "temperature": request.temperature,
        "target_revision": request.target_revision,
        "draft_revision": request.draft_revision,
        **first,
        "tokens": request.tokens,
    } | ({"also": also} if also else {})


def _drafts(shown: Shown) -> dict[str, Any]:
    told = {"proposer": shown.proposer, "examined": shown.examined, "accepted": shown.accepted}
    return told | ({"expected": [round(one, 3) for one in shown.expected]} if shown.expected else {})


class ReportFile:
    """Appends to a file and moves it away when it is full. Blocking."""

    def __init__(self, path: Path, *, most_bytes: float, keep: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._keep = keep

    def append(self, lines: Sequence[str]) -> None:
        """Write whole lines. Raises `OSError` where none of them may have been written."""
        data = "".join(f"{line}\n" for line in lines).encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(data) > self._most_bytes:
            self._move_away()
        end = self._path.stat().st_size if self._path.exists() else 0
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  Path.open takes no descriptor
            if file.write(data) < len(data):
                file.truncate(end)  # half a line would be read as a fault
                raise OSError("the disk is full")

    def _move_away(self) -> None:
        if not self._keep:
            self._path.unlink()
            return
        for place in range(self._keep - 1, 0, -1):
            if (older := self._numbered(place)).exists():
                older.replace(self._numbered(place + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, place: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{place}")


class Reports(Behind[str], Collector):
    """Writes reports behind the event loop's back. What cannot be written is counted, said once, and let go."""

    def __init__(self, section: TelemetrySection) -> None:
        super().__init__(interval=_INTERVAL, most=_MOST_WAITING)
        self._file: ReportFile | None = None
        self._counts: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self.configure(section)

    def configure(self, section: TelemetrySection) -> None:
        """Go on in this file from the next report on."""
        path = section.reports_file
        self._file = (
            None
            if path is None
            else ReportFile(
                path.expanduser(), most_bytes=section.reports_mib * _MIB, keep=section.reports_keep
            )
        )

    def finished(self, request: Finished) -> None:
        """Queue its report."""
        self._tell(line_of(request))

    def updated(self, target_revision: str, draft_revision: str, now: float) -> None:
        """Queue the line that marks an update of the target or the draft."""
        self._tell(
            {
                "t": round(now, 3),
                "event": "target_update",
                "target_revision": target_revision,
                "draft_revision": draft_revision,
            }
        )

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield counter(
            "specd_request_reports_total",
            "Request reports by what became of them.",
            ("outcome",),
            [((outcome,), count) for outcome, count in self._counts.items()],
        )

    def _tell(self, line: dict[str, Any]) -> None:
        if self._file is not None and not self._put(json.dumps(line)):
            self._counts["lost"] += 1

    def _append(self) -> Append[str] | None:
        return None if self._file is None else self._file.append

    def _lost(self, lines: Sequence[str], error: OSError, *, again: bool) -> None:
        self._counts["lost"] += len(lines)
        if not again:
            log.error("request reports are lost, and counted, until they can be written: %s", error)

    def _written(self, lines: Sequence[str], *, again: bool) -> None:
        self._counts["written"] += len(lines)
        if again:
            log.warning("request reports are written again")
