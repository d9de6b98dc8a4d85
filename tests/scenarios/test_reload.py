"""A config that changes under a daemon that serves."""

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specd.config.policy import LoadSection, PolicySection
from tests.daemon.daemon_process import wait_until
from tests.scenarios.crowd import Crowd, seen
from tests.scenarios.stage import RealDaemon, Stage

BODY = {"prompt": "the daemon drafts", "max_tokens": 100, "temperature": 0.0, "ignore_eos": True}
OK = "specd_config_last_reload_successful"
TIME = "specd_config_last_reload_success_timestamp_seconds"


@pytest.fixture(scope="module")
def _daemon(stage: Stage) -> Iterator[RealDaemon]:
    policy = {"kind": "static", "static_k": 1, "k_max": 8}
    with stage.daemon(policy=policy, model={"draft": {"ngram_min": 1}}) as daemon:
        yield daemon.ready()


@pytest.fixture
def daemon(_daemon: RealDaemon) -> Iterator[RealDaemon]:
    """Left with the config that it had at first."""
    yield _daemon
    _daemon.write()
    assert _daemon.reload().returncode == 0


def chosen(daemon: RealDaemon) -> tuple[int, str] | None:
    """The k of the newest round that had room for a draft, and its reason."""
    rounds = daemon.get("/admin/v1/decisions").json()["decisions"]
    return next(((one["k"], one["reason"]) for one in rounds if one["reason"] != "no_room"), None)


def test_good_reload_by_signal(daemon: RealDaemon) -> None:
    """Test that SIGHUP changes k in the middle of a running request, which goes on to its end."""
    body = BODY | {"max_tokens": 2000, "specd": {"report": True}}
    before = daemon.metrics()[TIME]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(daemon.post, "/v1/completions", body)
        wait_until(lambda: chosen(daemon) == (1, "static"), "a round with k = 1")
        daemon.write(policy={"static_k": 3})
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: chosen(daemon) == (3, "static"), "a round with k = 3")
    assert daemon.metrics()[TIME] > before
    assert daemon.metrics()[OK] == 1
    found = answer.result().json()
    assert found["usage"]["completion_tokens"] == 2000
    assert {"1", "3"} <= set(found["specd"]["k_histogram"])


async def test_good_reload_by_command(daemon: RealDaemon) -> None:
    """Test that `specd reload --wait` prints the diff and exits 0, and that no request is lost over it."""
    async with Crowd(daemon.url, **BODY) as crowd:
        await crowd.resize(3)
        await seen(lambda: crowd.served(3), "requests served before")
        daemon.write(policy={"kind": "off"})
        done = await asyncio.to_thread(daemon.reload)
        assert (done.returncode, done.stdout, done.stderr) == (0, "policy.kind: static -> off (hot)\n", "")
        await seen(lambda: chosen(daemon) == (0, "disabled"), "no more drafts")
        await seen(lambda: crowd.served(3), "requests served during and after")
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["kind"] == "off"


EVERY_KEY: dict[str, Any] = {
    "kind": "goodput",
    "objective": "latency",
    "latency_ms": 50.0,
    "k_max": 5,
    "static_k": 3,
    "half_life": 8.0,
    "prior": 0.9,
    "draft_cost": 0.1,
    "row_cost": 0.01,
    "tree_nodes": 8,
    "probe_every": 2,
    "probe_k": 2,
    "tenants": [{"name": "*", "draft_tokens": 4}],
    "load.table": [[2, 5], [4, 2]],
    "load.off_above": 5,
    "load.resume_at": 2,
    "load.context_table": [[4000, 4]],
    "load.kv_reserve": 0.3,
    "load.dwell_steps": 2,
    "load.from_profile": True,
}


def test_the_keys_above_are_all_there_are() -> None:
    sections = [("", PolicySection), ("load.", LoadSection)]
    keys = [f"{at}{name}" for at, section in sections for name in section.model_fields]
    assert set(keys) - {"load", "profile"} == set(EVERY_KEY), "profile takes a restart"


async def test_every_key_of_the_policy_is_taken_over_under_load(daemon: RealDaemon) -> None:
    """Test that one key after another changes while three clients are served, as the only change told, and that no
    request is lost over it and no text changes.
    """
    told, policy = [], dict[str, Any](load={})
    async with Crowd(daemon.url, **BODY) as crowd:
        await crowd.resize(3)
        await seen(lambda: crowd.served(3), "requests served before")
        for key, value in EVERY_KEY.items():
            section, name = (policy["load"], key.removeprefix("load.")) if "." in key else (policy, key)
            section[name] = value
            if key != "objective":  # which does nothing by itself, and is refused without latency_ms
                daemon.write(policy=policy)
                told += [each["key"] for each in (await asyncio.to_thread(daemon.reloads))["changes"]]
        await seen(lambda: crowd.served(3), "requests served during and after")
    assert sorted(told) == sorted(f"policy.{key}" for key in EVERY_KEY)
    config = daemon.get("/admin/v1/config").json()["config"]["policy"]
    assert config["load"]["table"] == EVERY_KEY["load.table"]
    assert config["kind"] == "goodput"
    assert len(crowd.texts) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"policy": {"k_maxx": 4}}, "policy.k_maxx: unknown key; did you mean policy.k_max?"),
    ({"policy": {"static_k": 5, "k_max": "many"}}, "policy.k_max: "),
    ({"policy": {"static_k": 9}}, "static_k = 9 is above k_max = 8"),
    ({"alerts": {"receivers": [{"name": "ops", "url": "http://a", "secret_file": "/no"}]}}, "receiver ops: "),
    (
        {"policy": {"static_k": 5}, "model": {"draft": {"skip_layers": [9]}}},
        "model.draft.skip_layers: the target has layers 0 to 3, not all of [9]",
    ),
    (
        {"policy": {"static_k": 5}, "engine": {"max_running": 3}},
        "nothing was changed: engine.max_running can only change with a restart",
    ),
]


@pytest.mark.parametrize(("sections", "sentence"), BAD)
async def test_bad_reload_keeps_what_it_has(
    daemon: RealDaemon, sections: dict[str, Any], sentence: str
) -> None:
    """Test that a config that cannot be taken over exits 2 with the fault, is counted, and changes nothing."""
    before = daemon.get("/admin/v1/config").json()
    async with Crowd(daemon.url, **BODY) as crowd:
        await crowd.resize(3)
        daemon.write(**sections)
        done = await asyncio.to_thread(daemon.reload)
        await seen(lambda: crowd.served(3), "requests served during and after")
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert daemon.metrics()[OK] == 0
    assert daemon.get("/admin/v1/config").json() == before
    last = daemon.status()["config"]["last_reload"]
    assert (last["result"], last["trigger"]) == ("refused", "admin")
    assert sentence in last["error"]
    assert chosen(daemon) == (1, "static")


def test_bad_reload_by_signal_is_in_log_and_metric(daemon: RealDaemon) -> None:
    """Test that a SIGHUP with a broken file leaves a line in the log and the metric at 0, and requests served."""
    daemon.config_file.write_text("[policy\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.metrics()[OK] == 0, "the refusal")
    assert "reload by SIGHUP refused, the running config stays: " in daemon.log
    assert "not valid TOML" in daemon.log
    assert daemon.post("/v1/completions", BODY).status_code == 200
