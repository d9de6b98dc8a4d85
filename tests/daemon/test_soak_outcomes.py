"""What `make soak` calls an answer, and what it sees of a process: a judge that is too kind would find nothing."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from benchmarks.inside import look
from benchmarks.soak import _leaks, dropped
from benchmarks.soak_clients import Outcome, _streamed, _whole, bodies
from benchmarks.soak_watch import Rest, mapped, open_files, sampled
from tests.daemon.conftest import until


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
    rest = Rest(mib=90.0, files={"socket": 20, "pipe": 10}, blocks_used=0, blocks_missing=0)
    held = lambda *args: [one for _, one, _ in _leaks(*args)]  # noqa: E731
    assert held(100.0, rest, 104.9, rest) == [True, True, True, True]
    assert held(100.0, rest, 105.1, rest) == [False, True, True, True]
    assert held(100.0, rest, 94.0, rest) == [False, True, True, True]
    assert held(100.0, rest, 100.0, replace(rest, awaited=["a change"])) == [True, False, True, True]
    more = replace(rest, files={"socket": 20, "pipe": 11})
    assert held(100.0, rest, 100.0, more) == [True, True, False, True]
    assert "1 more of pipe" in _leaks(100.0, rest, 100.0, more)[2][2]
    assert held(100.0, rest, 100.0, replace(rest, blocks_used=1)) == [True, True, True, False]
    assert held(100.0, rest, 100.0, replace(rest, blocks_missing=1)) == [True, True, True, False]


def test_requests_that_a_storm_drops_are_told() -> None:
    """Test that what came before does not count, nor what clients provoke, and that all else does."""
    before = {"engine_restarted": 3, "queue_full": 1}
    assert not dropped(before, {**before, "queue_full": 9, "invalid_value": 2})
    assert dropped(before, {**before, "engine_restarted": 5, "shutting_down": 1}) == {
        "engine_restarted": 2,
        "shutting_down": 1,
    }


def test_a_process_is_seen_as_it_is() -> None:
    """Test that memory, files and threads are this process's, that a file more is one more of its name, and that kinds
    of memory add up to what is resident.
    """
    before = sampled(os.getpid(), 1.0)
    with Path(os.devnull).open() as _:
        during = sampled(os.getpid(), 2.0)
        assert open_files(os.getpid())[os.devnull] >= 1
    assert (during.files, during.threads) == (before.files + 1, before.threads)
    assert 10 < during.mib < 10_000
    assert sum(mapped(os.getpid()).values()) == pytest.approx(during.mib, rel=0.1)


async def test_a_process_is_looked_into_from_outside(tmp_path) -> None:
    """Test that a process which listens tells what it holds, again and again, and where that was asked for."""
    program = (
        "import sys, time, pathlib\n"
        "from benchmarks.inside import listen\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "listen(folder, 'traced')\n"
        "held = [bytes(1000) for _ in range(5000)]\n"
        "(folder / 'up').touch()\n"
        "sys.stdin.read()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdin=asyncio.subprocess.PIPE
    )
    await until((tmp_path / "up").exists)
    first, second = [await look(tmp_path, name) for name in ("first", "second")]
    process.stdin.close()
    assert await process.wait() == 0
    assert first["python"]["blocks"] > 1000 < second["python"]["objects"]
    assert first["allocator"]["in_use"] > 0
    assert any("<string>:5" in line for line in first["traced"])


def test_requests_are_of_every_sort_and_always_the_same() -> None:
    found = [next(one) for one in [bodies(1, plain=False)] for _ in range(300)]
    again = bodies(1, plain=False)
    assert found == [next(again) for _ in range(300)]
    assert {path for path, _ in found} == {"/v1/completions", "/v1/chat/completions"}
    assert {"n", "stop", "response_format", "frequency_penalty"} <= {key for _, body in found for key in body}
