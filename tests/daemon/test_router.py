"""`specd route` in front of two instances that only pretend: who is asked, what comes back, and who is told what."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specd.cli import main
from specd.config.layers import load
from specd.errors import ConfigError
from specd.router.router import faults
from tests.daemon.conftest import until
from tests.daemon.daemon_process import DEADLINE, DaemonProcess, wait_until
from tests.daemon.instance import WORDS, Instance

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
ONCE = {"messages": [{"role": "user", "content": "hello"}]}
LISTEN = (
    '[server]\nlisten = "127.0.0.1:0"\n{server}\n[admin]\nlisten = "127.0.0.1:0"\n[reload]\nwatch = false\n'
)


class Router(DaemonProcess):
    """`specd route` before two instances."""

    def __init__(
        self, directory: Path, drafts: Instance, plain: Instance, extra: str, server: str = ""
    ) -> None:
        urls = f'[router]\nspeculating = "{drafts.url}"\nplain = "{plain.url}"\ncheck_seconds = 0.05\n'
        self.base = LISTEN.format(server=server) + urls
        super().__init__(directory, self.base + extra, command="route")
        self.drafts, self.plain = drafts, plain

    def reload(self, extra: str) -> httpx2.Response:
        self.config_file.write_text(self.base + extra)
        return self._http.post(self.admin + "/admin/v1/reload")

    def serves(self) -> tuple[bool, bool]:
        instances = self.status()["instances"]
        return instances["speculating"]["serves"], instances["plain"]["serves"]

    def count(self, instance: str, outcome: str) -> float:
        return self.metric(f'specd_router_requests_total{{instance="{instance}",outcome="{outcome}"}}')


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    drafts, plain = Instance("speculating"), Instance("plain")
    directory = tmp_path_factory.mktemp("router")
    with drafts.running(), plain.running(), Router(directory, drafts, plain, "") as router:
        wait_until(lambda: router.serves() == (True, True))
        yield router
        router.signal(signal.SIGTERM)
        assert router.wait() == 0
        assert "Traceback" not in router.log


@pytest.fixture
def router(house: Router) -> Iterator[Router]:
    """With two instances that serve, no load, and drafting on at once where the load allows it."""
    yield house
    for instance in (house.drafts, house.plain):
        instance.release()
        instance.behave()
    assert house.reload("").status_code == 200
    wait_until(lambda: house.serves() == (True, True))
    wait_until(lambda: house.status()["load"]["new_requests_go_to"] == "speculating")


@contextlib.asynccontextmanager
async def streaming(
    router: Router, body: dict[str, Any] = STREAM, **headers: str
) -> AsyncIterator[AsyncIterator[str]]:
    """The events of a stream that is open, as they come."""
    async with (
        httpx2.AsyncClient(timeout=DEADLINE) as client,
        client.stream("POST", router.url + CHAT, json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        yield (line.removeprefix("data: ") async for line in answer.aiter_lines() if line)


async def asked(router: Router, body: dict[str, Any] = ONCE, **headers: str) -> str:
    """Which instance answers."""
    async with httpx2.AsyncClient(timeout=DEADLINE) as client:
        answer = await client.post(router.url + CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-specd-instance"] == answer.json()["by"]
    return answer.json()["by"]


async def test_what_is_asked_and_answered_goes_through_as_it_is(router):
    """Test that path, query, body and answer are those of the instance, and what it refuses, its refusal."""
    async with httpx2.AsyncClient(timeout=DEADLINE) as client:
        body = b'{"model":  "x", "unknown": [1]}'
        answer = await client.post(f"{router.url}/v1/completions?a=b%20c", content=body)
        assert answer.json() == {"by": "speculating", "path": "/v1/completions", "query": "a=b%20c"}
        assert router.drafts.asked[-1][2] == body
        router.drafts.status = 400
        refused = await client.post(f"{router.url}/v1/completions", content=b"{")
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "no, says speculating")
        assert (await client.get(f"{router.url}/v1/models")).status_code == 400
    assert router.count("speculating", "refused") == 2


async def test_a_stream_comes_as_it_is_written(router):
    """Test that each word is there before the next one is written, and nothing is added."""
    router.drafts.held = True
    async with streaming(router) as events:
        assert json.loads(await anext(events))["word"] == WORDS[0]
        router.drafts.release()
        assert [event async for event in events][-1] == "[DONE]"


async def test_load_decides_and_comes_back_after_its_dwell(router):
    """Test that above `off_above` requests go to the plain instance, and after the load has fallen they go on going
    there while it dwells, and to the other one at once without a dwell.
    """
    rules = "[policy.load]\noff_above = 1\nresume_at = 1\ndwell_steps = {}\n"
    assert router.reload(rules.format(10**9)).status_code == 200
    router.drafts.held = True
    async with streaming(router) as events:
        assert json.loads(await anext(events))["by"] == "speculating"
        assert await asked(router) == "plain"
        load = router.status()["load"]
        assert (load["running"], load["state"], load["new_requests_go_to"]) == (1, "off", "plain")
        router.drafts.release()
        assert [event async for event in events]
    await until(lambda: router.status()["load"]["running"] == 0)
    assert router.status()["load"]["new_requests_go_to"] == "plain"
    assert router.reload(rules.format(0)).status_code == 200
    assert await asked(router) == "speculating"
    assert router.metric('specd_router_decisions_total{reason="load"}') == 1


async def test_long_texts_go_by_the_context_table(router):
    """Test that a prompt which is longer than the table's cap of 0 allows is not drafted for."""
    assert router.reload("[policy.load]\ncontext_table = [[1000, 8], [2000, 0]]\n").status_code == 200
    assert await asked(router) == "speculating"
    assert await asked(router, {"prompt": "word " * 1000}) == "plain"


@pytest.mark.parametrize("wish", [{"speculate": "off"}, {"k": 0}])
async def test_a_request_that_wants_no_drafts_gets_none(router, wish):
    """Test that the daemon's own extension is understood."""
    assert await asked(router, ONCE | {"specd": wish}) == "plain"
    assert await asked(router, ONCE | {"specd": {"speculate": "auto"}}) == "speculating"


async def test_an_instance_that_is_busy_or_ill_is_passed_over(router):
    """Test that a 503 before any work leads to the other instance, as does a health that is bad; that this is told; and
    that the instance gets its requests again when it is well.
    """
    router.drafts.status = 503
    assert await asked(router) == "plain"
    assert router.count("speculating", "not_taken") == 1
    router.drafts.status, router.drafts.healthy = 200, False
    await until(lambda: router.serves() == (False, True))
    assert await asked(router) == "plain"
    assert router.status()["instances"]["speculating"]["why_not"] == "/health answers 503"
    assert "the speculating instance does not serve (/health answers 503)" in router.log
    assert router.metric('specd_router_instance_up{instance="speculating"}') == 0
    router.drafts.healthy = True
    await until(lambda: router.serves() == (True, True))
    assert await asked(router) == "speculating"


async def test_where_nobody_serves_it_is_said(router):
    """Test that a request and /ready get 503 with the reasons of both, and /health does not."""
    router.drafts.healthy = router.plain.healthy = False
    await until(lambda: router.serves() == (False, False))
    answer = await asyncio.to_thread(router.post, CHAT, ONCE)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (503, "no_instance", "1")
    assert "speculating: /health answers 503; plain: /health answers 503" in error["message"]
    assert [router.get(path).status_code for path in ("/ready", "/health")] == [503, 200]


async def test_an_answer_that_breaks_off_is_told_to_be(router):
    """Test that a stream ends in an event in OpenAI's envelope, and that what was to come whole is a 502; neither is
    sent to the other instance.
    """
    router.drafts.breaks = True
    async with streaming(router) as events:
        found = [json.loads(event) async for event in events]
    assert found[0]["word"] == WORDS[0]
    assert found[-1]["error"]["code"] == "instance_lost"
    answer = await asyncio.to_thread(router.post, CHAT, ONCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "instance_lost")
    assert router.plain.asked == []
    assert router.count("speculating", "failed") == 2


async def test_a_client_that_leaves_closes_the_way_to_the_instance(router):
    """Test that the instance sees it leave, and that it counts as nothing that runs."""
    router.drafts.held = True
    async with streaming(router) as events:
        await anext(events)
    await until(lambda: router.drafts.left == 1)
    await until(lambda: router.count("speculating", "left") >= 1)
    assert router.status()["load"]["running"] == 0


async def test_only_what_is_below_v1_is_reached(router):
    """Test that neither another path nor one that leads out of /v1 comes to an instance."""
    reader, writer = await asyncio.open_connection(*router.url.removeprefix("http://").split(":"))
    writer.write(b"GET /v1/../slots HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b" 404 " in (await reader.read()).split(b"\r\n")[0]
    writer.close()
    await writer.wait_closed()
    assert httpx2.get(router.url + "/slots").status_code == 404
    assert router.drafts.asked == router.plain.asked == []


async def test_more_than_there_is_room_for_is_refused(router):
    """Test that server.max_queue bounds what is in flight."""
    base = router.base
    router.base = base.replace("[server]\n", "[server]\nmax_queue = 1\n")
    assert router.reload("").status_code == 200
    router.base = base
    router.drafts.held = True
    async with streaming(router) as events:
        await anext(events)
        answer = await asyncio.to_thread(router.post, CHAT, ONCE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")


async def test_the_clients_key_goes_on_unless_it_is_for_the_router(router, tmp_path):
    """Test that without keys of its own the router hands on the Authorization header; that with keys it asks for one,
    keeps it to itself, and shows the instances the key that is theirs; and that a drain lets a stream come to its end.
    """
    await asked(router, authorization="Bearer mine")
    assert router.drafts.asked[-1][1]["authorization"] == "Bearer mine"
    (tmp_path / "theirs").write_text("inner\n")
    (tmp_path / "keys").write_text("outer\n")
    with Router(
        tmp_path,
        router.drafts,
        router.plain,
        f'key_file = "{tmp_path}/theirs"\n',
        f'api_keys_file = "{tmp_path}/keys"',
    ) as locked:
        assert (await asyncio.to_thread(locked.post, CHAT, ONCE)).status_code == 401
        await asked(locked, authorization="Bearer outer")
        assert router.drafts.asked[-1][1]["authorization"] == "Bearer inner"
        router.drafts.held = True
        async with streaming(locked, authorization="Bearer outer") as events:
            assert WORDS[0] in await anext(events)
            locked.signal(signal.SIGTERM)
            await until(lambda: "draining" in locked.log)
            router.drafts.release()
            assert [event async for event in events][-1] == "[DONE]"
        assert locked.wait() == 0
        assert "inner" not in locked.log


async def test_a_config_that_is_refused_changes_nothing(router):
    """Test that a reload by which no request would ever be drafted for is refused, and told in metrics and status."""
    answer = await asyncio.to_thread(router.reload, "draft = 16\n")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_config")
    assert router.metric("specd_config_last_reload_successful") == 0
    assert "is above every cap" in router.status()["config"]["last_reload"]["error"]
    assert await asked(router) == "speculating"


def test_the_commands_of_the_daemon_know_it(router, capsys):
    """Test that `specd reload --wait` and `specd status` work on a router as they do on a daemon."""
    admin = ["--admin", router.admin.removeprefix("http://")]
    router.config_file.write_text(router.base + "draft = 2\n")
    assert main(["reload", "--wait", *admin]) == 0
    assert "router.draft" in capsys.readouterr().out
    assert main(["status", *admin]) == 0
    assert "instances.speculating.serves" in capsys.readouterr().out
    router.config_file.write_text(router.base + "draft = 16\n")
    assert main(["reload", "--wait", *admin]) == 2
    assert "is above every cap" in capsys.readouterr().err


async def test_the_instances_can_be_others_after_a_reload(router):
    """Test that URLs are hot: with the two exchanged, each is asked for what the other one was."""
    base = router.base
    router.base = base.replace(router.drafts.url, "?").replace(router.plain.url, router.drafts.url)
    router.base = router.base.replace("?", router.plain.url)
    assert router.reload("").status_code == 200
    router.base = base
    answer = await asyncio.to_thread(router.post, CHAT, ONCE)
    assert (answer.headers["x-specd-instance"], answer.json()["by"]) == ("speculating", "plain")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('plain = "http://127.0.0.1:1"\n', r"router\.speculating is not set: write the URL"),
        ('speculating = "http://a:1"\nplain = "http://a:1/"\n', r"are the same: start a second instance"),
        ('speculating = "http://a:1/v1"\n', r"router\.speculating: it says more than scheme, host and port"),
        ('speculating = "a:1"\n', r"router\.speculating: it names no server"),
        (
            'speculating = "http://a:1"\nplain = "http://b:1"\ndraft = 16\n',
            r"router\.draft = 16 is above every cap of policy\.load\.table, of which the largest is 8",
        ),
    ],
)
def test_what_cannot_be_routed_is_refused_by_a_sentence(tmp_path, lines, sentence):
    """Test that a config without two instances is refused, as is one by which none would ever speculate."""
    file = tmp_path / "router.toml"
    file.write_text(f"[router]\n{lines}")
    assert re.search(sentence, "\n".join(_refusals(file)))


def _refusals(file: Path) -> Sequence[str]:
    try:
        return list(faults(load(file, env={}).config))
    except ConfigError as error:
        return error.faults


def test_a_router_without_instances_ends_as_the_users_mistake(tmp_path):
    """Test that nothing is opened, and both lines are on stderr."""
    with DaemonProcess(tmp_path, LISTEN.format(server=""), command="route") as process:
        assert process.wait() == 2
        assert [line.split(" ")[0] for line in process.log.splitlines()] == [
            "router.speculating",
            "router.plain",
        ]
        assert process.said == ""
