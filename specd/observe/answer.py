"""What an engine says of its drafts in the answer to a request.

vLLM      `metrics.speculative_decoding`, where it was started with --per-request-spec-decode-metrics
SGLang    `meta_info` or `sglext.spec_tokens_details`, where that is asked for; its names have changed twice
specd     `specd`, where a report is asked for
llama.cpp's `timings.draft_n` and `draft_n_accepted` are totals of drafts whose length nobody tells: they compare with
nothing. TGI and transformers say nothing of it.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from policies.observed.gather import POSITIONS
from specd.config.observe import ObservedKind

ASKED_FOR: Final[Mapping[ObservedKind, Mapping[str, Any]]] = {
    "sglang": {"return_meta_info": True},
    "specd": {"specd": {"report": True}},
}
"""By kind: what has to stand in a request for it."""


class Told(NamedTuple):
    """Of the drafts for one request; see `policies.observed.gather.Report`."""

    measure: str
    examined: tuple[int, ...]
    accepted: tuple[int, ...]


def told(answer: Mapping[str, Any]) -> Told | None:
    """None where nothing was drafted, whatever rate is told then, or where nothing is told. Numbers that are none are
    as if they were not there.
    """
    for read in (_vllm, _sglang, _specd):
        found = read(answer)
        if found is not None:
            return found if sum(found.examined) else None
    return None


def _vllm(answer: Mapping[str, Any]) -> Told | None:
    found = _within(answer, "metrics", "speculative_decoding")
    if found is None:
        return None
    drafted, kept = _counts(found.get("per_step_drafted")), _counts(found.get("per_step_accepted"))
    if drafted and kept and len(drafted) == len(kept):
        return _of_rounds(drafted, kept)
    histogram = _counts(found.get("acceptance_histogram"))
    return None if histogram is None else _of_histogram(histogram, _count(found.get("num_draft_tokens")))


def _sglang(answer: Mapping[str, Any]) -> Told | None:
    found = _within(answer, "sglext", "spec_tokens_details") or _within(answer, "meta_info")
    choices = answer.get("choices")
    if found is None and isinstance(choices, list) and choices and isinstance(choices[0], dict):
        found = _within(choices[0], "meta_info")
    if found is None or "spec_verify_ct" not in found:
        return None
    drafted = _first(found, "spec_num_proposed_drafts", "spec_draft_token_num", "spec_proposed_drafts")
    kept = _first(found, "spec_num_correct_drafts", "spec_accept_token_num", "spec_accepted_drafts")
    histogram = _counts(found.get("spec_correct_drafts_histogram") or found.get("spec_accept_histogram"))
    if histogram:
        return _of_histogram(histogram, drafted)
    rounds = _count(found["spec_verify_ct"])
    return _of_totals(drafted, kept, rounds)


def _specd(answer: Mapping[str, Any]) -> Told | None:
    found = _within(answer, "specd")
    examined, kept = (_counts((found or {}).get(name)) for name in ("examined", "accepted"))
    return None if examined is None or kept is None else Told(POSITIONS, tuple(examined), tuple(kept))


def _of_rounds(drafted: Sequence[int], kept: Sequence[int]) -> Told:
    """A round examines what it keeps, and one more where there is one."""
    depth = max(drafted)
    examined = [min(d, k + 1) for d, k in zip(drafted, kept, strict=True)]
    return Told(POSITIONS, _reaching(examined, depth), _reaching(kept, depth))


def _reaching(lengths: Sequence[int], depth: int) -> tuple[int, ...]:
    """By position: rounds that reached it."""
    return tuple(sum(length > at for length in lengths) for at in range(depth))


def _of_histogram(rounds: Sequence[int], drafted: int) -> Told:
    """rounds: by how many tokens they kept. Where not each draft went to the end, the first position alone is known."""
    kept = tuple(accumulate(reversed(rounds)))[::-1]
    longest = len(rounds) - 1
    depth = longest if drafted == kept[0] * longest else min(longest, 1)
    return Told(POSITIONS, kept[:depth], kept[1 : depth + 1])


def _of_totals(drafted: int, kept: int, rounds: int) -> Told:
    return Told(f"{drafted // rounds if rounds else 0} drafted", (drafted,), (kept,))


def _within(table: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    found: Any = table
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _first(table: Mapping[str, Any], *names: str) -> int:
    return next((_count(table[name]) for name in names if name in table), 0)


def _count(value: object) -> int:
    """0 for what is no count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _counts(value: object) -> list[int] | None:
    return [_count(one) for one in value] if isinstance(value, list) and value else None
