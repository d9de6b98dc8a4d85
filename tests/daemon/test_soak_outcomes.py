"""What `make soak` calls an answer, and what it sees of a process: a judge that is too kind would find nothing."""

import json
import os
from pathlib import Path

import httpx2
import pytest

from benchmarks.soak import Rest, _leaks, sampled
from benchmarks.soak_clients import Outcome, _streamed, _whole, bodies


def envelope(code: str | None) -> str:
    return json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": code}})


@pytest.mark.parametrize(
    ("status", "content", "outcome"),
    [
        (200, '{"choices": []}', Outcome.ANSWERED),
        (200, "{}", Outcome.UNANSWERED),
        (429, envelope("queue_full"), Outcome.REFUSED),
        (400, envelope(None), Outcome.REFUSED),
        (500, envelope("internal_error"), Outcome.UNANSWERED),
        (500, "Internal Server Error", Outcome.UNANSWERED),
        (503, '{"error": "what"}', Outcome.UNANSWERED),
    ],
)
def test_only_an_answer_or_a_proper_error_counts(status: int, content: str, outcome: Outcome) -> None:
    assert _whole(status, content.encode())[0] is outcome


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ("data: [DONE]", Outcome.ANSWERED),
        (f"data: {envelope('engine_restarted')}", Outcome.BROKEN_OFF),
        (f"data: {envelope('internal_error')}", Outcome.UNANSWERED),
        ('data: {"choices": []}', Outcome.UNANSWERED),
        (": ping", Outcome.UNANSWERED),
    ],
)
async def test_a_stream_must_have_an_end(last: str, outcome: Outcome) -> None:
    content = f'data: {{"choices": [1]}}\n\n{last}\n\n'.encode()
    assert (await _streamed(httpx2.Response(200, content=content)))[0] is outcome


def test_growth_and_leaks_are_told() -> None:
    """Test that each bound can be broken, by a little more than it allows, in either direction."""
    rest = Rest(mib=90.0, files=30, blocks_used=0, blocks_missing=0)
    held = lambda *args: [one for _, one, _ in _leaks(*args)]  # noqa: E731
    assert held(100.0, rest, 104.9, rest) == [True, True, True]
    assert held(100.0, rest, 105.1, rest) == [False, True, True]
    assert held(100.0, rest, 94.0, rest) == [False, True, True]
    assert held(100.0, rest, 100.0, Rest(90.0, 31, 0, 0)) == [True, False, True]
    assert held(100.0, rest, 100.0, Rest(90.0, 30, 1, 0)) == [True, True, False]
    assert held(100.0, rest, 100.0, Rest(90.0, 30, 0, 1)) == [True, True, False]


def test_a_process_is_seen_as_it_is() -> None:
    """Test that memory, files and threads are this process's, and that a file more is one more."""
    before = sampled(os.getpid(), 1.0)
    with Path(os.devnull).open() as _:
        during = sampled(os.getpid(), 2.0)
    assert (during.files, during.threads) == (before.files + 1, before.threads)
    assert 10 < during.mib < 10_000


def test_requests_are_of_every_sort_and_always_the_same() -> None:
    found = [next(one) for one in [bodies(1, plain=False)] for _ in range(300)]
    again = bodies(1, plain=False)
    assert found == [next(again) for _ in range(300)]
    assert {path for path, _ in found} == {"/v1/completions", "/v1/chat/completions"}
    assert {"n", "stop", "response_format", "frequency_penalty"} <= {key for _, body in found for key in body}
