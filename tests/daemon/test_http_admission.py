"""Tenants, limits, deadlines and clients that do not read, against a whole daemon."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx2
import pytest

from specd.http.keys import Caller, line_of
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, wait_until

PATH = "/v1/completions"
LONG = {"prompt": "abc", "max_tokens": 250, "specd": {"k": 0}}
ONE = {"prompt": "a", "max_tokens": 1}


def admitted(daemon: DaemonProcess) -> int:
    return daemon.status()["load"]["admitted"]


def running(daemon: DaemonProcess) -> int:
    return daemon.status()["load"]["running"]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def held(daemons, tmp_path):
    """A file that holds the engine before its first step, until it is taken away."""
    file = tmp_path / "hold"
    file.write_text("tiny")
    daemons.engine.behave(hold=str(file))
    return file


def test_a_newcomer_does_not_wait_for_a_crowd(daemons, held, pool):
    """Test that with a crowd of one tenant before it, another's request is the next that the engine gets."""
    daemon = daemons.start("[engine]\nmax_running = 1").ready()
    order: list[str] = []

    def ask(tenant: str) -> None:
        body = {"prompt": "abc", "max_tokens": 10, "user": tenant, "specd": {"k": 0}}
        assert daemon.post(PATH, body).status_code == 200
        order.append(tenant)

    crowd = [pool.submit(ask, "crowd") for _ in range(12)]
    wait_until(lambda: admitted(daemon) == 12, "the crowd")
    guest = pool.submit(ask, "guest")
    wait_until(lambda: admitted(daemon) == 13, "the guest")
    held.unlink()
    for one in (*crowd, guest):
        one.result()
    assert (
        order.index("guest") <= 4
    )  # two are in the engine; answers that are as good as at once may be told late


def test_a_full_house_is_shared(daemons, held, pool):
    """Test that where one tenant holds all places, another gets one of them, and the last in line is told when to come
    back.
    """
    daemon = daemons.start("[engine]\nmax_running = 1", server="max_queue = 3").ready()
    crowd: list[Future[httpx2.Response]] = []
    for count in range(1, 5):
        crowd.append(pool.submit(daemon.post, PATH, {**ONE, "user": "crowd"}))
        wait_until(lambda count=count: admitted(daemon) == count, "the crowd")
    assert daemon.post(PATH, {**ONE, "user": "crowd"}).status_code == 429
    guest = pool.submit(daemon.post, PATH, {**ONE, "user": "guest"})
    (refused,) = wait_until(lambda: [one for one in crowd if one.done()], "one of the crowd to leave")
    held.unlink()
    assert guest.result().status_code == 200
    assert sorted(one.result().status_code for one in crowd) == [200, 200, 200, 429]
    assert refused.result().json()["error"]["code"] == "queue_full"
    assert int(refused.result().headers["retry-after"]) >= 1


LIMITS = """
[[server.limits]]
tenant = "small"
requests = 1
[[server.limits]]
tenant = "rated"
requests_per_minute = 2
[[server.limits]]
tenant = "fed"
tokens_per_minute = 60
[[server.limits]]
key = "ci"
requests_per_minute = 1
"""


def test_limits_of_tenants_and_keys(daemons, tmp_path, pool):
    """Test that each limit answers 429 with its sentence and Retry-After, that a key's tenant is not the client's to
    choose, and that limits are hot.
    """
    daemons.engine.behave(step_seconds=0.01)
    keys = tmp_path / "keys"
    lines = [line_of(name, Caller(name)) for name in ("small", "rated", "fed")]
    keys.write_text("\n".join([*lines, line_of("ci", Caller(key="ci")), "free"]))
    daemon = daemons.start(LIMITS, server=f'api_keys_file = "{keys}"').ready()

    def ask(key: str, body: dict) -> httpx2.Response:
        return daemon.post(PATH, {"user": "whoever", **body}, headers={"Authorization": f"Bearer {key}"})

    def refused(key: str) -> tuple[str, int]:
        answer = ask(key, ONE)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        return error["message"], int(answer.headers["retry-after"])

    first = pool.submit(ask, "small", {**LONG, "max_tokens": 60})
    wait_until(lambda: admitted(daemon) == 1, "the first request")
    assert "tenant 'small' has 1 requests running or waiting, and may have 1" in refused("small")[0]
    assert first.result().status_code == 200
    assert [ask("rated", ONE).status_code for _ in range(2)] == [200, 200]
    message, seconds = refused("rated")
    assert "may send 2 requests a minute" in message
    assert 25 <= seconds <= 30
    assert ask("fed", {"prompt": "a" * 50, "max_tokens": 20}).status_code == 200
    assert 1 <= refused("fed")[1] <= 10
    assert ask("ci", ONE).status_code == 200
    assert "key 'ci'" in refused("ci")[0]
    assert ask("free", ONE).status_code == 200
    text = daemon.config_file.read_text()
    daemon.config_file.write_text(text.replace("requests_per_minute = 2", "requests_per_minute = 6000"))
    assert httpx2.post(daemon.admin + "/admin/v1/reload").status_code == 200
    assert ask("rated", ONE).status_code == 200


def test_a_deadline_ends_a_request_and_frees_its_place(daemons):
    """Test that a request that runs for longer than it asked to gets a 408, which clients do not take for an invitation
    to send it again, or an error event once it streams, and that the engine drops it.
    """
    daemons.engine.behave(step_seconds=0.05)
    daemon = daemons.start("[engine]\nmax_running = 1").ready()
    body = {**LONG, "specd": {"k": 0, "timeout": 1.2}}
    whole, streamed = daemon.post(PATH, body), daemon.post(PATH, {**body, "stream": True})
    assert (whole.status_code, whole.headers["x-should-retry"]) == (408, "false")
    assert streamed.status_code == 200
    last = json.loads(streamed.text.strip().split("\n\n")[-1].removeprefix("data: "))
    for error in (whole.json()["error"], last["error"]):
        assert error["code"] == "request_timeout"
        assert "not answered whole within 1.2 s (specd.timeout)" in error["message"]
    wait_until(lambda: admitted(daemon) == 0 and running(daemon) == 0, "its place to be free")
    assert daemon.metric('specd_requests_unserved_total{code="request_timeout"}') == 2


def test_the_server_has_a_deadline_too(daemons, pool):
    """Test that it holds where the request asks for none or for more, in the waiting line as well."""
    daemons.engine.behave(step_seconds=0.05)
    daemon = daemons.start("[engine]\nmax_running = 1", server="request_seconds = 0.5").ready()
    asked = [pool.submit(daemon.post, PATH, {**LONG, "specd": {"k": 0, "timeout": 100}}) for _ in range(4)]
    for answer in (one.result() for one in asked):
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert "within 0.5 s (server.request_seconds)" in answer.json()["error"]["message"]
    assert daemon.post(PATH, ONE).status_code == 200


def test_a_deadline_holds_while_the_model_loads(daemons):
    """Test that nobody waits longer for the first start than was asked for."""
    daemons.engine.behave(load_seconds=5)
    daemon = daemons.start()
    answer = daemon.post(PATH, {**ONE, "specd": {"timeout": 0.3}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    """For tests that leave it as it was."""
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start(server='max_prompt_tokens = 10\nallowed_hosts = ["llm.example"]').ready()
    daemons.close()


def test_a_prompt_beyond_the_servers_limit(daemon):
    """Test that it is refused with both numbers, though the context would hold it."""
    answer = daemon.post(PATH, {"prompt": "a" * 11, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "prompt_too_long")
    assert "has 11 tokens, and this server takes 10" in answer.json()["error"]["message"]
    assert daemon.post(PATH, {"prompt": "a" * 10, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:1"}, 200),
        ({"Host": "llm.example"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_pages_under_other_names_may_not_generate(daemon, headers, status):
    """Test that without keys a browser's page gets nowhere, unless its name is listed."""
    assert daemon.post(PATH, ONE, headers=headers).status_code == status


def test_an_admin_body_is_bounded(daemon):
    """Test that the admin listener does not collect whatever is sent to it."""
    answer = httpx2.patch(daemon.admin + "/admin/v1/config", content=b" " * (2 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def unread(daemon: DaemonProcess) -> socket.socket:
    """A stream of a million tokens, and much about each of them, that nobody reads."""
    wanted = {"prompt": "abc", "max_tokens": 1_000_000, "stream": True, "logprobs": 20, "specd": {"k": 0}}
    body = json.dumps(wanted).encode()
    host, port = daemon.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(
        f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    return client


@pytest.mark.parametrize("server", ["max_unread = 50", "slow_client_seconds = 0.3"])
def test_a_client_that_does_not_read_is_ended(daemons, server):
    """Test that its sequence leaves the engine, by the outputs that wait for it or by the time, while others go on;
    cut off, its place is free as well.
    """
    daemons.engine.behave(max_context=2_000_000)
    daemon = daemons.start(server=server).ready()
    with unread(daemon):
        wait_until(lambda: running(daemon) == 1, "the stream")
        wait_until(lambda: running(daemon) == 0, "the engine to drop it")
        assert daemon.post(PATH, ONE).status_code == 200
        if "slow" in server:
            wait_until(lambda: admitted(daemon) == 0, "its place to be free")


def test_an_open_listener_needs_keys(daemons):
    """Test that the daemon does not start where other machines could generate without one."""
    daemon = daemons.start(server='listen = "0.0.0.0:0"')
    assert daemon.wait() == 2
    assert "server.listen = 0.0.0.0:0 is open to other machines: set server.api_keys_file" in daemon.log


def test_keys_are_followed_while_the_daemon_runs(daemons, tmp_path):
    """Test that a key is taken away and another given by writing the file, without a reload; and that with keys it
    does not matter by which name one asks: a page has none.
    """
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    daemon = daemons.start(server=f'api_keys_file = "{keys}"').ready()

    def status(key: str) -> int:
        headers = {"Host": "any.example", "Authorization": f"Bearer {key}"}
        return daemon.post(PATH, ONE, headers=headers).status_code

    assert status("first") == 200
    keys.write_text(line_of("second"))
    wait_until(lambda: status("second") == 200, "the new key")
    assert status("first") == 401
