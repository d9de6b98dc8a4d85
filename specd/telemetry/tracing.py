"""A span for each request: what is said of it, whoever records it.

What a caller says of its trace comes in as `traceparent` (W3C Trace Context); the answer has one that names the span
made here. No text is in a span, and of what a client can make up only its traffic class, which are few.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from engine.api import Request, RequestReport
from specd.config.tracing import TracingSection

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


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

    def span(self, method: str, route: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
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
    """As configured; None for no tracing. Raises `UserError` where the file of headers cannot be used."""
    if not section.endpoint:
        return None
    from specd.telemetry.otel import Traces  # noqa: PLC0415  an extra, and only who traces pays for the import

    return Traces(section, version)


def asked(request: Request, name: str, target_revision: str, draft_revision: str) -> Attributes:
    """What is known of a request when it goes to the engine. name: of the model, as clients know it."""
    return {
        "gen_ai.request.model": name,
        "gen_ai.response.id": request.id,
        "gen_ai.usage.input_tokens": len(request.prompt),
        "specd.class": request.traffic_class,
        "specd.target_revision": target_revision,
        "specd.draft_revision": draft_revision,
    }


def speculation(reports: Sequence[RequestReport]) -> Attributes:
    """What speculation did for it, all its texts together; nothing where no text came to its end."""
    rounds = sum(report.rounds for report in reports)
    if not rounds:
        return {}
    levels = sum(k * times for report in reports for k, times in report.k_histogram.items())
    return {
        "specd.rounds": rounds,
        "specd.drafted": sum(report.drafted for report in reports),
        "specd.examined": sum(sum(report.examined) for report in reports),
        "specd.accepted": sum(sum(report.accepted) for report in reports),
        "specd.k_mean": round(levels / rounds, 3),
        "specd.proposer": _most(report.proposers for report in reports),
        "specd.cached_tokens": reports[0].cached_tokens,
        "gen_ai.usage.output_tokens": sum(report.tokens for report in reports),
    }


def _most(rounds: Iterable[Mapping[str, int]]) -> str:
    """Who drafted in most of them."""
    total: Counter[str] = Counter()
    for each in rounds:
        total.update(each)
    (who, times), *_ = total.most_common(1) or [("", 0)]
    return who if times else "none"
