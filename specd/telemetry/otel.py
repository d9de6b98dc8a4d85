"""Spans by OpenTelemetry. The only module that knows its packages, which are the extra `tracing`."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specd.config.tracing import TracingSection
from specd.errors import UserError
from specd.telemetry.tracing import Attributes, Span
from specd.threads import in_thread

_SCOPE: Final = "specd"
_SERVER_ERROR: Final = 500
_LAST_SECONDS: Final = 2.0
"""For the spans that are left when the daemon ends."""

# One line for each batch that is lost is enough: that it is tried again is no news.
logging.getLogger("opentelemetry").setLevel(logging.ERROR)


class Traces:
    """Implements `specd.telemetry.tracing.Tracing`: spans go out in batches, by a thread of their own."""

    def __init__(self, section: TracingSection, version: str) -> None:
        """Raises `UserError` where the file of headers cannot be used."""
        headers = {} if section.headers_file is None else read_headers(section.headers_file)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": section.service_name, "service.version": version}),
            sampler=ParentBased(TraceIdRatioBased(section.sample)),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=section.endpoint, headers=headers)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_SCOPE, version)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """See Tracing."""
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=trace.set_span_in_context(span))
        try:
            yield _Recorded(span, carrier.get("traceparent", ""))
        finally:
            span.end()

    async def aclose(self) -> None:
        """See Tracing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await in_thread(self._provider.shutdown)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A span of OpenTelemetry's."""

    span: trace.Span
    traceparent: str

    def set(self, attributes: Attributes) -> None:
        """See Span."""
        self.span.set_attributes(attributes)

    def answered(self, status: int) -> None:
        """See Span. What is the client's mistake is no failure of ours."""
        self.set({"http.response.status_code": status})
        if status >= _SERVER_ERROR:
            self.failed(str(status))

    def failed(self, code: str) -> None:
        """See Span."""
        self.set({"error.type": code})
        self.span.set_status(StatusCode.ERROR)


def read_headers(path: Path) -> dict[str, str]:
    """One `Name: value` a line. Raises `UserError`, which does not quote them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"tracing.headers_file: {path} cannot be read: {why}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, _, value = map(str.strip, line.partition(":"))
        if name and value:
            found[name] = value
        elif line.strip():
            raise UserError(f"tracing.headers_file: {path}, line {number}: write it as Name: value")
    return found
