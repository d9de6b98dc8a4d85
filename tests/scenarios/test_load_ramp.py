"""A crowd that grows to 48 and shrinks again, seen through `/metrics` alone."""

from collections.abc import Iterator

import pytest

from policies.base import Reason
from tests.daemon.daemon_process import VLLM
from tests.scenarios.crowd import Crowd, seen
from tests.scenarios.stage import RealDaemon, Stage

FULL, SHRUNK, OFF = 0, 1, 2
LOAD = {
    "table": [[4, 4], [12, 2], [24, 1]],
    "off_above": 24,
    "resume_at": 12,
    "dwell_steps": 4,
}
POLICY = {"kind": "static", "static_k": 4, "k_max": 4, "probe_every": 4, "load": LOAD}
ENDLESS = {
    "prompt": "the daemon drafts and the target decides",
    "max_tokens": 3000,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def daemon(stage: Stage) -> Iterator[RealDaemon]:
    """Its KV pool holds 48 requests of full length, so that all of them run. A guess is never shorter than k."""
    with stage.daemon(
        engine={"kv_mib": 160, "max_running": 48},
        policy=POLICY,
        model={"draft": {"kind": "ngram", "ngram_min": 1, "match_factor": 16}},
    ) as daemon:
        yield daemon.ready()


class Meter:
    """What `/metrics` says, and what has been added since the last `mark`."""

    def __init__(self, daemon: RealDaemon) -> None:
        self._daemon = daemon
        self.mark()

    def mark(self) -> None:
        self._start = self._daemon.metrics()

    def grown(self) -> "Growth":
        return Growth(self._start, self._daemon.metrics())


class Growth:
    def __init__(self, start: dict[str, float], now: dict[str, float]) -> None:
        self._start, self._now = start, now
        self.state = now["specd_load_state"]
        self.running = now["specd_running_requests"]

    def of(self, series: str) -> float:
        return self._now.get(series, 0) - self._start.get(series, 0)

    def reasons(self) -> dict[str, float]:
        """Rounds by the reason for their k; only reasons that occurred."""
        series = {reason: f'specd_policy_decisions_total{{reason="{reason}"}}' for reason in Reason}
        return {reason.value: grown for reason, name in series.items() if (grown := self.of(name))}

    def rounds(self, k: int, proposer: str = "ngram") -> float:
        """Rounds that got exactly this k."""
        up_to = [f'specd_draft_length_bucket{{le="{float(n)}",proposer="{proposer}"}}' for n in (k, k - 1)]
        return self.of(up_to[0]) - self.of(up_to[1])


async def test_k_follows_the_load_up_and_down(daemon: RealDaemon) -> None:
    """Test that from 1 client to 48 and back k goes 4, 2, 1, 0 with probes, stays 0 at first, and comes back."""
    meter = Meter(daemon)

    async def at(clients: int, state: int, k: int, reason: str) -> None:
        """With so many clients, the load policy comes to this state, and rounds get this k for this reason."""
        await crowd.resize(clients)
        await seen(lambda: (now := meter.grown()).running == clients and now.state == state, f"{state = }")
        meter.mark()
        proposer = "ngram" if k else "none"
        await seen(lambda: meter.grown().rounds(k, proposer) >= 20, f"20 rounds at {k = }")
        shorter = {"static"} if VLLM else set()  # its lookups may end before k, and then nothing caps them
        assert set(meter.grown().reasons()) <= {reason, "probe", "no_offer", *shorter}

    async with Crowd(daemon.url, **ENDLESS) as crowd:
        await at(1, FULL, 4, "static")
        await at(8, SHRUNK, 2, "load_cap")
        await at(20, SHRUNK, 1, "load_cap")
        await at(48, OFF, 0, "load_off")
        await at(20, OFF, 0, "load_off")  # 20 is no longer too many, but drafting resumes at 12
        await at(8, SHRUNK, 2, "load_cap")
        await at(1, FULL, 4, "static")
    assert all(answer.status_code == 200 for answer in crowd.answers)


async def test_probes_are_all_that_is_drafted_while_off(daemon: RealDaemon) -> None:
    """Test that with drafting off by load a probe comes every few steps, and nothing else is drafted."""
    meter = Meter(daemon)
    async with Crowd(daemon.url, **ENDLESS) as crowd:
        await crowd.resize(40)
        await seen(lambda: (now := meter.grown()).running == 40 and now.state == OFF, "drafting to be off")
        meter.mark()
        await seen(lambda: meter.grown().reasons().get("probe", 0) >= 5, "5 probes")
        growth = meter.grown()
    assert growth.state == OFF
    assert set(growth.reasons()) == {"probe", "load_off"}
    probes = growth.reasons()["probe"]
    steps = growth.of('specd_step_seconds_count{phase="verify"}')
    assert probes == pytest.approx(steps / POLICY["probe_every"], abs=1)
    assert growth.rounds(0, "none") == growth.reasons()["load_off"]
    assert 0 < growth.of('specd_spec_decode_num_drafts_total{proposer="ngram"}') <= probes
    assert growth.of('specd_spec_decode_num_draft_tokens_total{proposer="ngram"}') <= probes
