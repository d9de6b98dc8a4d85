"""A span for each request. The only module that knows OpenTelemetry's packages, which are an extra.

What a caller says of its trace comes in as `traceparent` (W3C Trace Context); the answer has one that names the span
made here. No text is in a span, and of what a client can make up only its traffic class, which are few.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from engine.api import Request, RequestReport
from specd.config.tracing import TracingSection
from specd.errors import UserError
from specd.threads import in_thread

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]

_SCOPE: Final = "specd"
_SERVER_ERROR: Final = 500
_SECONDS: Final = 2.0
"""For the last spans, when the daemon ends."""


class Span(Protocol):
    """One request, as long as it is answered."""

    @property
    def traceparent(self) -> str:
        """For the answer; empty where there is none."""

    def set(self, attributes: Attributes) -> None:
        """Add what is known by now, or know it better."""

    def answered(self, status: int) -> None:
        """The answer has begun with this HTTP status."""

    def failed(self, code: str) -> None:
        """No good answer came of it, for this reason."""


class Tracing(Protocol):
    """Makes spans."""

    def span(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[Span]:
        """Of a request with these headers, named in lower case; ends with the context."""

    async def aclose(self) -> None:
        """Send what is left, as far as there is time."""


class NoSpan:
    """Nobody wants to know."""

    traceparent = ""

    def set(self, attributes: Attributes) -> None:
        """See Span."""

    def answered(self, status: int) -> None:
        """See Span."""

    def failed(self, code: str) -> None:
        """See Span."""


NO_SPAN: Final = NoSpan()


def tracing(section: TracingSection, version: str) -> Tracing | None:
    """As configured; None for no tracing. Raises `UserError` where a file of headers cannot be used."""
    if not section.endpoint:
        return None
    # Only who traces pays for the import.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    # Once for each batch that is lost is enough: what is tried again is no news.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    headers = {} if section.headers_file is None else read_headers(section.headers_file)
    exporter = OTLPSpanExporter(endpoint=section.endpoint, headers=headers)
    return Traces(exporter, section, version)


def read_headers(path: Path) -> dict[str, str]:
    """One `Name: value` a line. Raises `UserError`, which does not quote them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"tracing.headers_file: {path} cannot be read: {why}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if line.strip() and not (colon and name.strip() and value.strip()):
            raise UserError(f"tracing.headers_file: {path}, line {number}: write it as Name: value")
        if line.strip():
            found[name.strip()] = value.strip()
    return found


class Traces:
    """Makes spans and has them exported, in batches, by a thread of their own."""

    def __init__(self, exporter: "SpanExporter", section: TracingSection, version: str) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": section.service_name, "service.version": version}),
            sampler=ParentBased(TraceIdRatioBased(section.sample)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_SCOPE, version)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """See Tracing."""
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415  an extra

        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        try:
            yield _Recorded(span, carrier.get("traceparent", ""))
        finally:
            span.end()

    async def aclose(self) -> None:
        """See Tracing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                await in_thread(self._provider.shutdown)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A span of OpenTelemetry's."""

    span: Any
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
        from opentelemetry.trace import StatusCode  # noqa: PLC0415  an extra

        self.set({"error.type": code})
        self.span.set_status(StatusCode.ERROR)


def asked(request: Request, name: str, target_revision: str, draft_revision: str) -> Attributes:
    """What is known of a request when it goes to the engine."""
    return {
        "gen_ai.request.model": name,
        "gen_ai.response.id": request.id,
        "gen_ai.usage.input_tokens": len(request.prompt),
        "specd.class": request.traffic_class,
        "specd.target_revision": target_revision,
        "specd.draft_revision": draft_revision,
    }


def speculation(reports: Iterable[RequestReport]) -> Attributes:
    """What speculation did for it, all its texts together; nothing where no text came to its end."""
    reports = list(reports)
    rounds = sum(report.rounds for report in reports)
    if not rounds:
        return {}
    levels = sum(k * times for report in reports for k, times in report.k_histogram.items())
    drafted_by: dict[str, int] = {}
    for report in reports:
        for proposer, times in report.proposers.items():
            drafted_by[proposer] = drafted_by.get(proposer, 0) + times
    return {
        "specd.rounds": rounds,
        "specd.drafted": sum(report.drafted for report in reports),
        "specd.examined": sum(sum(report.examined) for report in reports),
        "specd.accepted": sum(sum(report.accepted) for report in reports),
        "specd.k_mean": round(levels / rounds, 3),
        "specd.proposer": max(drafted_by, key=lambda name: drafted_by[name], default="none"),
        "specd.cached_tokens": reports[0].cached_tokens,
        "gen_ai.usage.output_tokens": sum(report.tokens for report in reports),
    }
