"""`[telemetry]`: what is written down of requests."""

from pathlib import Path

from specd.config.section import Section, hot


class TelemetrySection(Section):
    """Request reports: a JSON line for each finished request, without any text of it."""

    reports_file: Path | None = hot(None, "where they go, for `specd replay`; unset writes none")
    reports_mib: float = hot(64.0, "a file that has grown to this becomes FILE.1, and that FILE.2, …", gt=0)
    reports_keep: int = hot(4, "older files that are kept; what is older goes", ge=0)
