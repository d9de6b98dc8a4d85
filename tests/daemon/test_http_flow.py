"""Places, queue, disconnects, pings and keys: what happens around a request."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import pytest

from engine.classes import ClassNames
from specd.admission.turnstile import Turnstile
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.http.bodies import CompletionBody
from specd.http.encode import encode_completion
from specd.http.generate import GenerateEndpoint, Service
from specd.http.shapes import CompletionShape
from specd.models.drafts import Drafts
from specd.serving import load_served
from specd.supervisor import Supervisor
from tests.daemon.daemon_process import DEADLINE, DaemonProcess, wait_until
from tests.daemon.test_supervisor import supervised

LONG = {"prompt": "abc", "max_tokens": 250}


def admitted(daemon: DaemonProcess) -> int:
    return daemon.status()["load"]["admitted"]


def running(daemon: DaemonProcess) -> int:
    return daemon.status()["load"]["running"]


def leave(daemon: DaemonProcess, body: dict) -> None:
    """Send a request, and hang up as soon as the engine works on it."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    url = httpx2.URL(daemon.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(head.encode() + data)
        wait_until(lambda: running(daemon) == 1, "the engine to run the request")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(daemons, stream):
    """Test that hanging up cancels the request in the engine, whether it streamed or not."""
    daemons.engine.behave(step_seconds=0.05)
    daemon = daemons.start().ready()
    leave(daemon, {**LONG, "stream": stream, "specd": {"k": 0}})
    wait_until(lambda: admitted(daemon) == 0, "the place to be free")
    wait_until(lambda: running(daemon) == 0, "the engine to drop the request")
    assert daemon.get("/metrics").text.count('reason="crash"} 0') == 1


def test_a_full_queue_says_when_to_come_back(daemons):
    """Test that one request more than running and waiting places gets 429 with Retry-After."""
    daemons.engine.behave(step_seconds=0.02)
    daemon = daemons.start("[engine]\nmax_running = 1", server="max_queue = 1").ready()
    with ThreadPoolExecutor(2) as pool:
        served = [pool.submit(daemon.post, "/v1/completions", {**LONG, "max_tokens": 100}) for _ in range(2)]
        wait_until(lambda: admitted(daemon) == 2, "both places to be taken")
        refused = daemon.post("/v1/completions", LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert [answer.result().status_code for answer in served] == [200, 200]
    assert daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


@dataclass
class Line:
    supervisor: Supervisor
    read: asyncio.Future

    async def enter(self):
        return self

    async def model(self):
        return await self.read


async def test_a_silent_stream_is_kept_open_by_comments(daemons):
    """Test that a stream whose next token takes long sends comments, and then goes on."""
    daemons.engine.behave(step_seconds=0.5)
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    async with supervised(daemons.engine) as setup:
        model = asyncio.Future()
        model.set_result(load_served(TargetSection(path="tiny"), daemons.model, Drafts(("ngram",))))
        line = Line(setup.supervisor, model)
        turnstile = Turnstile(tuple, time.monotonic)
        service = Service("tiny", line.enter, Config, ClassNames(), turnstile, str, ping_seconds=0.1)
        endpoint = GenerateEndpoint(service, CompletionBody, encode_completion, CompletionShape())
        await endpoint.handle(b'{"prompt": "a", "max_tokens": 1, "stream": true}', send, {})
    lines = [message["body"] for message in sent[1:]]
    assert lines.count(b": ping\n\n") >= 2
    assert lines[-2:] == [b"data: [DONE]\n\n", b""]


def test_a_slow_reader_does_not_stop_the_others(daemons):
    """Test that a client that does not read leaves the engine and other clients alone."""
    daemon = daemons.start().ready()
    with httpx2.stream("POST", daemon.url + "/v1/completions", json={**LONG, "stream": True}) as slow:
        assert daemon.post("/v1/completions", LONG).status_code == 200
        assert slow.status_code == 200


def test_requests_before_the_model_is_loaded_wait_for_it(daemons):
    """Test that the listeners are up while the engine loads, /ready says no, and a request is served after."""
    daemons.engine.behave(load_seconds=1.5)
    daemon = daemons.start()
    early: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: early.append(daemon.post("/v1/completions", LONG)))
    thread.start()
    not_yet = daemon.get("/ready")
    assert (not_yet.status_code, not_yet.json()["error"]["code"]) == (503, "not_ready")
    assert daemon.get("/health").status_code == 200
    assert "loading" in daemon.status()["unready_because"]
    thread.join(DEADLINE)
    assert early[0].status_code == 200


def test_keys_are_asked_for_and_read_again_at_a_reload(daemons, tmp_path):
    """Test that /v1 wants a bearer key when a file is set, probes do not, and a reload takes new keys."""
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    daemon = daemons.start(server=f'api_keys_file = "{keys}"').ready()

    def status(key: str | None) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers).status_code

    assert [status(key) for key in (None, "wrong", "first", "second")] == [401, 401, 200, 200]
    assert daemon.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
    assert daemon.get("/ready").status_code == 200
    keys.write_text("third\n")
    assert httpx2.post(daemon.admin + "/admin/v1/reload").status_code == 200
    assert [status("first"), status("third")] == [401, 200]
    keys.write_text("")
    refused = httpx2.post(daemon.admin + "/admin/v1/reload")
    assert (refused.status_code, status("third")) == (422, 200)
    assert "is empty" in refused.json()["error"]["message"]


def test_a_model_without_a_chat_template_says_what_to_do(daemons):
    """Test that chat is refused with a sentence while completions work."""
    (daemons.model / "tokenizer_config.json").write_text("{}")
    daemon = daemons.start().ready()
    answer = daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_chat_template")
    assert "use /v1/completions" in answer.json()["error"]["message"]
    assert "/v1/completions" in daemon.said


def test_a_template_that_refuses_is_the_clients_fault(daemons):
    """Test that a chat template's own complaint reaches the client as a 400."""
    (daemons.model / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    daemon = daemons.start().ready()
    answer = daemon.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]
