"""The daemon's state as server-sent events: whole at first, then what changes, whoever reads how slowly."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator

import httpx2
import pytest

from specd.dashboard.feed import MOST, CrowdedError, Feed
from specd.dashboard.history import History
from specd.http.events import Events
from tests.daemon.conftest import Daemons, until
from tests.daemon.daemon_process import DaemonProcess

PARTS = ["status", "alerts", "target", "decisions", "happened", "crashes", "history", "fleet"]


class Parts:
    """Two parts that a test changes, and how often they were asked for."""

    def __init__(self) -> None:
        self.loud, self.calm = 0, 0
        self.looks = 0

    def feed(self, interval: float = 0.0) -> Feed:
        return Feed({"loud": self._loud, "calm": lambda: self.calm}, interval=interval)

    def _loud(self) -> int:
        self.looks += 1
        return self.loud


def told(news):
    return {part.name: int(part.body) for part in news.parts}


async def test_a_listener_is_told_all_and_then_what_changes():
    """Test that the first news is the whole state, and each later one the parts that are other than before."""
    parts = Parts()
    looks = parts.feed().listen(["loud", "calm"], "", 60)
    assert told(await anext(looks)) == {"loud": 0, "calm": 0}
    assert told(await anext(looks)) == {}
    parts.loud = 7
    assert told(await anext(looks)) == {"loud": 7}
    await looks.aclose()


async def test_who_comes_back_is_told_what_was_missed():
    """Test that an id leads on from where it was given, and that one of another life, or none, starts anew."""
    parts = Parts()
    feed = parts.feed()
    looks = feed.listen(["loud", "calm"], "", 60)
    last = (await anext(looks)).id
    await looks.aclose()
    parts.loud = 1
    for given, expected in (
        (last, {"loud": 1}),
        ("", {"loud": 1, "calm": 0}),
        ("0-1", {"loud": 1, "calm": 0}),
        (f"{last}0000", {"loud": 1, "calm": 0}),
        (f"{last.partition('-')[0]}-x", {"loud": 1, "calm": 0}),
    ):
        again = feed.listen(["loud", "calm"], given, 60)
        assert told(await anext(again)) == expected, given
        await again.aclose()


async def test_nobody_looks_while_nobody_listens_and_many_share_a_look():
    """Test that looks are made for listeners only, and one look for all of them."""
    parts = Parts()
    feed = parts.feed(interval=60)
    assert parts.looks == 0
    for _ in range(5):
        looks = feed.listen(["loud"], "", 60)
        assert told(await anext(looks)) == {"loud": 0}
        await looks.aclose()
    assert parts.looks == 1


async def test_a_slow_reader_is_told_the_newest_only():
    """Test that for a reader who does not take anything nothing piles up: what was overtaken is never sent."""
    parts = Parts()
    feed, sent, reads = parts.feed(), [], asyncio.Event()

    async def send(message):
        sent.append(message.get("body", b""))
        if len(sent) > 1:
            await reads.wait()

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"only=loud"}
    slow = asyncio.ensure_future(Events(feed)(scope, receive, send))
    await until(lambda: len(sent) == 2)
    quick = feed.listen(["loud"], "", 60)
    for number in range(1, 200):
        parts.loud = number
        while told(await anext(quick)) != {"loud": number}:
            pass
    await quick.aclose()
    assert len(sent) == 2
    reads.set()
    await until(lambda: len(sent) == 3)
    assert sent[2].endswith(b"\nevent: loud\ndata: 199\n\n")
    feed.close()
    await slow
    assert feed.listeners == 0


async def test_there_are_only_so_many_listeners():
    """Test that one too many is refused, and let in when another has left."""
    feed = Parts().feed()
    with contextlib.ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(feed.place())
        with pytest.raises(CrowdedError), feed.place():
            pass
    with feed.place():
        assert feed.listeners == 1


def test_an_hour_is_remembered_and_no_more():
    """Test that figures are kept in columns of the last 360 points, with a gap where a stratum was not known."""
    chat = {"traffic_class": "chat", "temperature": "greedy", "proposer": "ngram", "by_chance": False}
    status = {"drafts": {"tokens_per_second": 5.0}, "load": {"running": 1, "waiting": 0}, "drift": []}
    history = History(lambda: status, clock=lambda: 1000.0)
    for _ in range(400):
        history.note()
    status["drift"] = [{**chat, "requests": 9, "now": 0.5, "baseline": 0.75}]
    status["load"]["running"] = 3
    history.note()
    found = history.snapshot()
    assert found["ends_at"] == 1000.0
    assert [len(found[column]) for column in ("tokens_per_second", "running", "waiting")] == [360] * 3
    assert found["running"][-2:] == [1, 3]
    (stratum,) = found["acceptance"]
    assert stratum.items() >= chat.items()
    assert (stratum["now"][-2:], stratum["baseline"][-2:]) == ([None, 0.5], [None, 0.75])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start().ready()
    daemons.close()


def listen(daemon: DaemonProcess, count: int, query: str = "", **headers: str) -> list[dict]:
    """The first events of a stream."""
    with httpx2.stream("GET", f"{daemon.admin}/admin/v1/events{query}", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events(answer.iter_lines(), count)


def events(lines: Iterator[str], count: int) -> list[dict]:
    found: list[dict] = [{}]
    for line in lines:
        name, _, value = line.partition(": ")
        found[-1][name] = json.loads(value) if name == "data" else value
        if not line:
            found[-1].pop("")
            if len(found) == count:
                return found
            found.append({})
    raise AssertionError(f"the stream ended after {found}")


def test_the_stream_begins_with_the_whole_state(daemon):
    """Test that each part comes as its endpoint has it, and that the next event is the status of a second later."""
    assert daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 8}).status_code == 200
    found = listen(daemon, len(PARTS) + 1)
    assert [event["event"] for event in found] == [*PARTS, "status"]
    assert ["id" in event for event in found] == [False] * (len(PARTS) - 1) + [True, True]
    state = {event["event"]: event["data"] for event in found[: len(PARTS)]}
    status = daemon.status()
    for moving in ("uptime_seconds", "kv", "drafts", "load"):
        state["status"].pop(moving), status.pop(moving)
    assert state["status"] == status
    assert state["target"] == daemon.get("/admin/v1/target").json()
    assert state["decisions"] == daemon.get("/admin/v1/decisions?limit=24").json()["decisions"]
    shown = daemon.get("/admin/v1/alerts").json() | daemon.get("/admin/v1/silences").json()
    assert state["alerts"] == shown
    assert state["happened"][-1]["kind"] == "start"


def test_a_stream_goes_on_where_another_ended(daemon):
    """Test that `Last-Event-ID` spares what has not changed since, and one of another daemon spares nothing."""
    last = listen(daemon, len(PARTS))[-1]["id"]
    assert listen(daemon, 1, **{"Last-Event-ID": last})[0]["event"] == "status"
    assert "target" not in {event["event"] for event in listen(daemon, 2, **{"Last-Event-ID": last})}
    assert [event["event"] for event in listen(daemon, len(PARTS), **{"Last-Event-ID": "other-1"})] == PARTS


def test_some_parts_can_be_asked_for(daemon):
    """Test that `only` names parts, and a part that there is not is refused with those that there are."""
    assert [event["event"] for event in listen(daemon, 2, "?only=happened,target")] == ["target", "happened"]
    refused = daemon.get("/admin/v1/events?only=alert")
    assert refused.status_code == 400
    assert "there is no part 'alert'; there are status, alerts" in refused.json()["error"]["message"]


def test_head_has_no_stream(daemon):
    """Test that asking for the headers alone is answered at once."""
    assert (
        httpx2.head(f"{daemon.admin}/admin/v1/events").headers["content-type"].startswith("text/event-stream")
    )


def test_the_stream_wants_the_token_and_does_not_hold_up_the_end(daemons, tmp_path):
    """Test that the events are as private as the rest of /admin, while the page, which says nothing, is not; and that a
    daemon that is told to end ends the streams itself, in order.
    """
    token = tmp_path / "token"
    token.write_text("letmein\n")
    daemon = daemons.start(admin=f'token_file = "{token}"').ready()
    assert daemon.get("/admin/v1/events").status_code == 401
    assert daemon.get("/").status_code == 200
    headers = {"Authorization": "Bearer letmein"}
    with httpx2.stream("GET", f"{daemon.admin}/admin/v1/events", headers=headers) as answer:
        lines = answer.iter_lines()
        events(lines, len(PARTS))
        daemon.signal(signal.SIGTERM)
        for _ in lines:
            pass
    assert daemon.wait() == 0
    assert "Cancel" not in daemon.log


def test_the_page_is_of_this_daemon_alone(daemon):
    """Test that page, style and scripts come with a policy that allows nothing inline or foreign, and can be kept."""
    page = daemon.get("/")
    files = [*page.text.split('"')[1::2]]
    for path in ["/", *(f"/{name}" for name in files if name.startswith("dashboard/"))]:
        answer = daemon.get(path)
        assert answer.status_code == 200, path
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        tag = {"If-None-Match": answer.headers["etag"]}
        assert httpx2.get(daemon.admin + path, headers=tag).status_code == 304
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert daemon.get("/dashboard/../daemon.py").status_code == 404
