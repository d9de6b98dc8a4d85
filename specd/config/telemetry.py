"""`[telemetry]`: what is written down of requests."""

from pathlib import Path

from specd.config.section import Section, hot


class TelemetrySection(Section):
    """Request reports: a JSON line for each finished request, without any text of it. And, where asked for, prompts."""

    reports_file: Path | None = hot(None, "where they go, for `specd replay`; unset writes none")
    reports_mib: float = hot(64.0, "a file that has grown to this becomes FILE.1, and that FILE.2, …", gt=0)
    reports_keep: int = hot(4, "older files that are kept; what is older goes", ge=0)
    prompts_recorded: int = hot(
        0,
        "so many prompts of clients, the last ones, are kept in store.directory for specd's user alone, to train heads "
        "on; 0 keeps none, and deletes what was kept",
        ge=0,
    )
    prompts_mib: float = hot(16.0, "that they may take", gt=0)
