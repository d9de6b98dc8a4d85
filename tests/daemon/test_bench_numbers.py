"""The parts of `specd bench` that need no server."""

import asyncio
from itertools import islice

import pytest

from specd.bench.client import api_base
from specd.bench.load import closed_loop
from specd.bench.prompts import MIXES, blend, prompts, texts
from specd.bench.report import Asked
from specd.bench.sample import Level, Quantiles, Sample, Speculation, quantiles, summarize


def good(started, *arrivals, tokens, **more):
    return Sample(started=started, ended=arrivals[-1], arrivals=arrivals, tokens=tokens, **more)


def test_summary_by_hand():
    """Test each number of a summary against two requests whose times are written down here."""
    first = good(10.0, 10.1, 10.2, 10.4, tokens=4, speculation=Speculation(2, examined=4, accepted=3))
    second = good(10.0, 10.3, 12.0, tokens=6, speculation=Speculation(3, examined=6, accepted=3))
    summary = summarize(Level("copy", 2, [first, second]))
    assert (summary.requests, summary.failed, summary.seconds, summary.tokens) == (2, 0, 2.0, 10)
    assert summary.tokens_per_second == 5.0
    assert summary.ttft.p50 == pytest.approx(0.2)
    assert summary.inter_token.p50 == pytest.approx(0.2)  # of 0.1, 0.2 and 1.7
    assert summary.per_token.p50 == pytest.approx((0.3 / 3 + 1.7 / 5) / 2)
    assert (summary.acceptance, summary.tokens_per_round) == (0.6, 2.0)


def test_failures_count_for_nothing_but_their_time():
    """Test that a failed request adds no token and no latency, though the clock ran on for it."""
    failed = Sample(started=0.0, ended=4.0, arrivals=(3.0,), tokens=1, error="HTTP 429: queue full")
    summary = summarize(Level("chat", 1, [failed, good(0.0, 1.0, 2.0, tokens=2)]))
    assert (summary.errors, summary.tokens, summary.tokens_per_second) == (
        {"HTTP 429: queue full": 1},
        2,
        0.5,
    )
    assert summary.ttft == Quantiles(1.0, 1.0, 1.0)


def test_what_was_not_measured_is_none():
    """Test that a request without text or report makes no latency and no acceptance, rather than zeros."""
    summary = summarize(Level("chat", 1, [Sample(started=0.0, ended=1.0)]))
    absent = (
        summary.ttft,
        summary.inter_token,
        summary.per_token,
        summary.acceptance,
        summary.tokens_per_round,
    )
    assert absent == (None,) * 5


def test_one_uncounted_request_marks_the_level():
    """Test that tokens are said to be counted by the server only if all of them were."""
    counted, arrived = good(0.0, 1.0, tokens=1), good(0.0, 1.0, tokens=1, counted_by_server=False)
    assert summarize(Level("chat", 1, [counted, arrived])).tokens_counted_by == "arrivals"
    assert summarize(Level("chat", 1, [counted])).tokens_counted_by == "server"


def test_quantiles_interpolate():
    """Test the quantiles of 0 to 100 and of nothing."""
    assert quantiles([float(n) for n in range(101)]) == Quantiles(50.0, 95.0, 99.0)
    assert quantiles([]) is None


async def test_closed_loop():
    """Test that no more clients than asked for are at work, and that the next request waits for an end."""
    working, most, ends = 0, 0, []
    three = asyncio.Event()

    async def ask(prompt):
        nonlocal working, most
        working += 1
        most = max(most, working)
        if working == 3:
            three.set()
        await three.wait()
        await asyncio.sleep(0)
        working -= 1
        return prompt

    async with asyncio.timeout(20):
        await closed_loop(ask, range(10), 3, ends.append)
    assert most == 3
    assert sorted(ends) == list(range(10))


@pytest.mark.parametrize("mix", MIXES)
def test_prompts_are_the_same_for_the_same_seed(mix):
    """Test that order and text depend on mix and seed alone."""
    first = list(islice(prompts(mix, seed=3), 30))
    assert first == list(islice(prompts(mix, seed=3), 30))
    assert [p.text.partition(". ")[2] for p in first] != [
        p.text.partition(". ")[2] for p in islice(prompts(mix, seed=4), 30)
    ]


@pytest.mark.parametrize("kind", MIXES[:-1])
def test_a_mix_is_a_dozen_texts(kind):
    """Test that a dozen different texts of about 150 to 250 tokens come before the first comes again."""
    dozen = [prompt.text.partition(". ")[2] for prompt in islice(prompts(kind), 12)]
    assert sorted(dozen) == sorted(texts(kind))
    assert len(set(dozen)) == 12
    assert all(400 < len(text) < 1200 for text in dozen)


def test_mixed_takes_turns():
    """Test that the mixed traffic is a third each, in turn."""
    assert [prompt.traffic_class for prompt in islice(prompts("mixed"), 6)] == ["copy", "chat", "code"] * 2


def test_a_blend_keeps_its_share_in_every_beginning():
    """Test that of the first n prompts of two mixes, share times n are of the second, to a prompt."""
    for share in (0.0, 0.2, 0.5, 1.0):
        classes = [p.traffic_class for p in islice(blend(prompts("chat"), prompts("copy"), share), 40)]
        assert all(abs(classes[:n].count("copy") - share * n) < 1 for n in range(1, 41))


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_url_with_or_without_v1(given):
    """Test that the common ways to write a server's address mean the same."""
    assert api_base(given) == "http://h:1/v1/"


def test_requests_by_default():
    """Test that every client has at least three requests, and no level fewer than a dozen."""
    asked = Asked(concurrency=(1, 8), mix=("chat",), requests=None, max_tokens=128, seed=0)
    assert [asked.requests_at(clients) for clients in (1, 4, 8)] == [12, 12, 24]
    assert "--requests" not in asked.command()
