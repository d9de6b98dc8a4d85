"""Which numbers of which engine mean what.

vllm          v1/spec_decode/metrics.py and v1/metrics/loggers.py of 0.32. Steps are counted as they come. With our
              plugin in it, also how far drafts went
llamacpp      tools/server/server-task.cpp. A request is counted when it has ended
sglang        TokenizerMetricsCollector and SchedulerMetricsCollector. Rounds and tokens are counted when a request has
              ended; older versions have gauges of the last seconds in the place of rounds. What was kept by position
              nobody tells
tgi           router: the histogram of tokens that a step added beside its first. Its buckets are the positions
specd         another daemon of ours, the only one that counts what was examined
transformers  `transformers serve` tells nothing of drafts
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan, nan
from typing import Final

from policies.observed import Counters
from specd.config.observe import ObservedKind
from specd.observe.errors import ObserveError
from specd.observe.scrape import Page

_STARTED: Final = "process_start_time_seconds"


def kind_of(page: Page) -> ObservedKind:
    """Which engine it is. Raises `ObserveError`."""
    found: ObservedKind | None = next(
        (kind for kind, prefix in _PREFIXES.items() if any(name.startswith(prefix) for name in page.names)),
        None,
    )
    if found is None:
        raise ObserveError(
            "its metrics are those of no engine that is known: set kind, one of "
            + ", ".join([*_PREFIXES, "transformers"])
        )
    return found


def counters(kind: ObservedKind, page: Page) -> Counters | None:
    """What it has counted; None where it counts no drafts."""
    return _READERS[kind](page)


def _vllm(page: Page) -> Counters | None:
    found = _spec_decode(page, "vllm_")
    return found and replace(
        found,
        offered=tuple(page.by_label("specd_spec_decode_num_draft_tokens_per_pos_total", "position")),
        generated=page.sum("vllm_generation_tokens_total"),
        requests=page.sum("vllm_request_success_total"),
        running=page.sum("vllm_num_requests_running"),
        started=page.most(_STARTED),
    )


def _llamacpp(page: Page) -> Counters | None:
    found = _spec_decode(page, "llamacpp_")
    return found and replace(
        found,
        generated=page.sum("llamacpp_tokens_predicted_total"),
        running=page.sum("llamacpp_requests_processing"),
        whole=True,
    )


def _specd(page: Page) -> Counters | None:
    found = _spec_decode(page, "specd_")
    return found and replace(
        found,
        examined=tuple(page.by_label("specd_spec_decode_num_examined_tokens_per_pos_total", "position")),
        requests=page.sum("specd_time_to_first_token_seconds_count"),
        running=page.sum("specd_running_requests"),
    )


def _spec_decode(page: Page, prefix: str) -> Counters | None:
    """The names that three engines share."""
    name = f"{prefix}spec_decode_num_"
    drafts = page.sum(f"{name}drafts_total")
    if isnan(drafts):
        return None
    return Counters(
        drafts=drafts,
        drafted=page.sum(f"{name}draft_tokens_total"),
        accepted=page.sum(f"{name}accepted_tokens_total"),
        kept=tuple(page.by_label(f"{name}accepted_tokens_per_pos_total", "position")),
    )


def _sglang(page: Page) -> Counters | None:
    """Its rate and its length read 0 when there were no rounds, which is no rate of 0."""
    rounds, length = page.sum("sglang_spec_verify_calls_total"), page.mean("sglang_spec_accept_length")
    if isnan(rounds) and isnan(length):
        return None
    width = page.most("sglang_spec_num_draft_tokens")
    return Counters(
        drafts=rounds,
        drafted=nan,
        accepted=nan,
        generated=page.sum("sglang_generation_tokens_total"),
        requests=page.sum("sglang_num_requests_total"),
        running=page.sum("sglang_num_running_reqs"),
        started=page.most(_STARTED),
        length=length or nan,
        k=0 if isnan(width) else max(int(width) - 1, 0),  # one of them is the target's own
        whole=True,
    )


def _tgi(page: Page) -> Counters | None:
    """Of a request's first token it counts a step, too, which had no draft."""
    name = "tgi_request_skipped_tokens"
    reached = [page.sum(f"{name}_count"), *page.by_label(f"{name}_bucket", "le")[:-1]]
    positions = max(len(reached) - 2, 0)
    if isnan(reached[0]) or not positions:
        return None
    kept = tuple(reached[0] - below for below in reached[1 : positions + 1])
    return Counters(
        drafts=reached[0],
        drafted=nan,
        accepted=page.sum(f"{name}_sum"),
        kept=kept,
        generated=reached[0] + page.sum(f"{name}_sum"),
        requests=page.sum("tgi_request_success"),
        running=page.sum("tgi_batch_current_size"),
        firsts=page.sum("tgi_request_success"),
        k=positions,
    )


def _nothing(_: Page) -> None:
    return None


_READERS: Final[Mapping[ObservedKind, Callable[[Page], Counters | None]]] = {
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "sglang": _sglang,
    "tgi": _tgi,
    "specd": _specd,
    "transformers": _nothing,
}
_PREFIXES: Final[Mapping[ObservedKind, str]] = {
    "vllm": "vllm_",
    "llamacpp": "llamacpp_",
    "sglang": "sglang_",
    "tgi": "tgi_",
    "specd": "specd_",
}
