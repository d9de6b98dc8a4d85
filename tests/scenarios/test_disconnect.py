"""A client that goes away frees its slot and its memory."""

import itertools

import httpx2
import openai
import pytest

from tests.daemon.daemon_process import wait_until
from tests.scenarios.stage import RealDaemon

ENDLESS = {"prompt": "the daemon drafts", "max_tokens": 4000, "temperature": 0.0}
EXTRA = {"ignore_eos": True, "specd": {"speculate": "off"}}


def test_leaving_a_stream(served: RealDaemon) -> None:
    """Test that closing a stream after some tokens ends the request long before its length."""
    with served.client() as client:
        stream = client.completions.create(model="tiny", stream=True, extra_body=EXTRA, **ENDLESS)
        assert len(list(itertools.islice(stream, 3))) == 3
        assert served.running() == 1
        before = served.metrics()["specd_inter_token_seconds_count"]
        stream.close()
    served.comes_to_rest()
    assert served.metrics()["specd_inter_token_seconds_count"] - before < 3000


def test_leaving_before_the_answer(served: RealDaemon) -> None:
    """Test that a client that gives up waiting for a whole answer frees its slot too."""
    with pytest.raises(httpx2.ReadTimeout):
        served.post("/v1/completions", ENDLESS | EXTRA, timeout=0.5)
    served.comes_to_rest()


def test_leaving_the_queue(served: RealDaemon) -> None:
    """Test that clients who leave while they wait for a place are forgotten, and the next one is served."""
    with served.client() as client:
        streams = [
            client.completions.create(model="tiny", stream=True, extra_body=EXTRA, **ENDLESS)
            for _ in range(20)
        ]
        wait_until(lambda: served.status()["load"]["waiting"] == 12, "8 to run and 12 to wait")
        assert served.metrics()['specd_kv_blocks{state="used"}'] > 0
        for stream in streams:
            stream.close()
        served.comes_to_rest()
        answer = client.completions.create(model="tiny", prompt="a", max_tokens=3, extra_body=EXTRA)
    assert isinstance(answer, openai.types.Completion)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
