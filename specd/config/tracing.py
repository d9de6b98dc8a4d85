"""`[tracing]`: a span for each request, for a collector of OpenTelemetry."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from pydantic import model_validator

from specd.config.section import Section, restart

_PACKAGES: Final = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class TracingSection(Section):
    """A span for each request: docs/tracing.md. Needs the extra `tracing`."""

    endpoint: str = restart(
        "",
        "where spans are sent, OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; empty: nowhere",
        pattern=r"^(https?://.+)?$",
    )
    headers_file: Path | None = restart(
        None, "headers for the collector, one `Name: value` a line, such as its Authorization"
    )
    service_name: str = restart("specd", "what this daemon is called in traces", min_length=1)
    sample: float = restart(
        1.0,
        "share of requests that are traced; one that comes with a traceparent is traced where its caller is",
        ge=0,
        le=1,
    )

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        if self.endpoint and (why := unavailable_reason()):
            raise ValueError(why)
        return self


def unavailable_reason() -> str | None:
    """Why there can be no tracing, or None."""
    for name in _PACKAGES:
        if not _is_there(name):
            return (
                f"endpoint is set and the package {name} is not installed: pip install 'specd-llm[tracing]', or leave "
                "endpoint empty"
            )
    return None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent of it
        return False
