"""The alarm from outside: admin endpoints and `specd alerts`, against a daemon."""

import json
from collections.abc import Iterator

import httpx2
import pytest

from specd.cli import main
from tests.daemon.alert_receiver import AlertReceiver, alert_receiver
from tests.daemon.conftest import Daemons, until
from tests.daemon.daemon_process import DaemonProcess


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    """One without a receiver."""
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start().ready()
    daemons.close()


@pytest.fixture
async def receiver() -> Iterator[AlertReceiver]:
    async with alert_receiver() as receiver:
        yield receiver


def told_by(url: str) -> str:
    return f'[[alerts.receivers]]\nname = "ops"\nurl = {json.dumps(url)}\ngroup_wait_seconds = 0'


def ask(daemon: DaemonProcess, method: str, path: str, body: object = None) -> httpx2.Response:
    return httpx2.request(method, f"{daemon.admin}/admin/v1/{path}", json=body, timeout=20)


def typed(daemon: DaemonProcess, *words: str) -> int:
    return main(["alerts", *words, "--admin", daemon.admin.removeprefix("http://")])


def test_a_silence_is_made_listed_and_deleted(daemon):
    """Over HTTP, with its matchers as they were written."""
    wanted = {"matchers": ["class=chat", "SpecdAcceptanceDrift"], "for": "2h", "comment": "training"}
    made = ask(daemon, "POST", "silences", wanted)
    assert made.status_code == 201
    silence = made.json()
    assert silence["matchers"] == ["class=chat", "alertname=SpecdAcceptanceDrift"]
    assert ask(daemon, "GET", "silences").json()["silences"] == [silence]
    assert daemon.metric("specd_silences") == 1
    assert ask(daemon, "DELETE", f"silences?id={silence['id']}").status_code == 200
    assert ask(daemon, "GET", "silences").json() == {"silences": []}
    assert ask(daemon, "DELETE", f"silences?id={silence['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"matchers": ["class=chat"]}, 400, "missing required field `for`"),
        ({"matchers": [], "for": "2h"}, 400, "length >= 1"),
        ({"matchers": ["class=chat"], "for": "2"}, 422, "is no time: write it as 90s"),
        ({"matchers": ["class=~("], "for": "2h"}, 422, "is no regular expression"),
        ({"matchers": ["class!=chat"], "for": "2h"}, 422, "matches every alert that lacks"),
    ],
)
def test_a_silence_that_cannot_be_is_refused_with_a_sentence(daemon, body, status, words):
    """In OpenAI's envelope, as everything here."""
    refused = ask(daemon, "POST", "silences", body)
    assert refused.status_code == status
    assert words in refused.json()["error"]["message"]


def test_silences_at_the_command_line(daemon, capsys):
    """Made, listed with who made it, deleted; a mistake exits 2 and says what is right."""
    assert typed(daemon, "silence", "class=code", "--for", "30m", "--comment", "a new head") == 0
    name = capsys.readouterr().out.split()[0]
    assert typed(daemon, "list") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no alerts\n")
    assert f"silence   {name}  class=code  until 20" in shown
    assert "a new head" in shown
    assert typed(daemon, "unsilence", name) == 0
    assert typed(daemon, "unsilence", name) == 2
    assert typed(daemon, "silence", "class=~(", "--for", "30m") == 2
    assert "is no regular expression" in capsys.readouterr().err


def test_a_test_without_a_receiver_says_so(daemon, capsys):
    """Nobody would be told of anything."""
    assert typed(daemon, "test") == 2
    assert "no receiver is configured: add [[alerts.receivers]]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "body", [{"labels": {"a-b": "c"}}, {"wait_seconds": 1e9}, {"label": {}}, {"labels": {"a": 1}}]
)
def test_a_test_that_cannot_be_is_refused(daemon, body):
    """Labels have names that every receiver takes, and nobody waits for ever."""
    assert ask(daemon, "POST", "alerts/test", body).status_code == 400


async def test_a_test_goes_the_way_of_every_alert(daemons: Daemons, receiver, capsys):
    """It fires and ends, through the outbox; the answer tells what came of it, and health is shown."""
    daemon = daemons.start(told_by(receiver.url))
    body = {"labels": {"run": "7", "alertname": "Forged"}}
    async with httpx2.AsyncClient(timeout=20) as http:
        answer = (await http.post(f"{daemon.admin}/admin/v1/alerts/test", json=body)).json()
        assert answer["receivers"] == {"ops": "delivered"}
        await until(lambda: len(receiver.received) == 2)
        shown = (await http.get(f"{daemon.admin}/admin/v1/alerts")).json()
    messages = [json.loads(one.body) for one in receiver.received]
    assert [one["status"] for one in messages] == ["firing", "resolved"]
    labels = messages[0]["alerts"][0]["labels"]
    assert (labels["alertname"], labels["run"]) == ("SpecdTest", "7")
    assert [one["state"] for one in shown["alerts"]] == ["resolved"]
    assert shown["store"] == {"durable": True, "fault": None}
    (health,) = shown["receivers"]
    assert (health["name"], health["failing"], health["error"]) == ("ops", False, "")


def test_a_receiver_that_is_not_there_fails_the_test_of_it(daemons: Daemons, capsys):
    """Exit 1, and the list says why."""
    daemon = daemons.start(told_by("http://127.0.0.1:9/"))
    assert typed(daemon, "test", "--wait", "0.5") == 1
    assert capsys.readouterr().out == "ops  retried\n"
    assert typed(daemon, "list") == 0
    assert "receiver  ops (webhook): failing: ConnectError" in capsys.readouterr().out
