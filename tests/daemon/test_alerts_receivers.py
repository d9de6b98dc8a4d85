"""What each kind of receiver is sent, and where it may lead."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest
from pydantic import ValidationError

from specd.alerts.addresses import client, is_public
from specd.alerts.events import Event
from specd.alerts.lifecycle import Alert, State
from specd.alerts.receivers import alertmanager, mqtt, pagerduty, slack
from specd.alerts.receivers.base import Target
from specd.alerts.receivers.kinds import usable
from specd.alerts.receivers.webhook import body
from specd.alerts.store import Content, Message
from specd.config.alerts import AlertsSection, ReceiverSection, refused_when_set
from specd.config.mqtt import MqttSection
from specd.config.schema import Config
from specd.errors import UserError
from tests.daemon.alert_receiver import alert_receiver

START, END = 1764430000.25, 1764430060.0
RUNBOOK = "https://docs.example/alerts.md#specdacceptancedrift"


def an_alert(state=State.FIRING, **labels):
    wanted = {
        "alertname": "SpecdAcceptanceDrift",
        "class": "chat",
        "severity": "critical",
        "target_revision": "t2",
    }
    texts = {
        "summary": "Acceptance of <chat> fell",
        "description": "0.61 & then 0.40",
        "suspected_cause": "target update at noon",
        "runbook_url": RUNBOOK,
    }
    if state is State.RESOLVED:
        texts["resolution"] = "acceptance is back"
    return Alert(
        "f1", "drift", wanted | labels, texts, state, START, END if state is State.RESOLVED else None
    )


def a_message(*alerts, event=None):
    return Message("msg_1", "ops", Content(alerts, event), attempt=1)


def a_target(kind, url="http://ops/", key=b"", **keys):
    section = ReceiverSection(name="ops", kind=kind, url=url, secret_file="/key", **keys)
    return Target(section, url, (key,) if key else ())


def sent(post):
    assert post.headers["content-type"] == "application/json"
    return json.loads(post.content)


def test_a_webhook_of_a_group_says_what_its_alerts_have_in_common():
    """Status firing while one of them fires; labels that differ are in none of the common ones."""
    section = ReceiverSection(name="ops", url="http://ops", group_by=("alertname", "tenant"))
    both = a_message(an_alert(), an_alert(State.RESOLVED, **{"class": "code"}))
    message = json.loads(body(section, both))
    assert (message["status"], message["groupKey"]) == ("firing", '{}:{alertname="SpecdAcceptanceDrift"}')
    assert "class" not in message["commonLabels"]
    assert "resolution" not in message["commonAnnotations"]
    assert [one["status"] for one in message["alerts"]] == ["firing", "resolved"]


def test_an_alertmanager_is_told_until_when_an_alert_is_good():
    """Four repeats: one that is lost does not resolve it, a daemon that is gone does. An end has its own time."""
    target = a_target("alertmanager", "http://am:9093/base/", b"token", repeat_seconds=30)
    post = alertmanager.post(target, a_message(an_alert(), an_alert(State.RESOLVED)), now=START + 10)
    assert post.url == "http://am:9093/base/api/v2/alerts"
    assert post.headers["authorization"] == "Bearer token"
    firing, resolved = sent(post)
    assert set(firing) == {"labels", "annotations", "startsAt", "endsAt"}
    assert (firing["startsAt"], firing["endsAt"]) == ("2025-11-29T15:26:40.250Z", "2025-11-29T15:28:50.250Z")
    assert resolved["endsAt"] == "2025-11-29T15:27:40.000Z"


def test_pagerduty_has_an_incident_for_each_fingerprint():
    """Triggered and resolved by the same key, with the evidence and a link to the runbook."""
    target = a_target("pagerduty", "https://pd", b"R0UT1NG")
    post = pagerduty.post(target, a_message(an_alert()), START)
    assert post.url == "https://pd/v2/enqueue"
    event = sent(post)
    assert (event["routing_key"], event["event_action"], event["dedup_key"]) == ("R0UT1NG", "trigger", "f1")
    assert event["payload"]["severity"] == "critical"
    assert event["payload"]["custom_details"]["suspected_cause"] == "target update at noon"
    assert event["links"] == [{"href": RUNBOOK, "text": "Runbook"}]
    end = sent(pagerduty.post(target, a_message(an_alert(State.RESOLVED)), END))
    assert end == {"routing_key": "R0UT1NG", "dedup_key": "f1", "event_action": "resolve"}


def test_pagerduty_knows_four_severities():
    """Another word becomes a warning, and a long summary is cut to what it takes."""
    alert = an_alert(severity="page-me")
    alert.annotations["summary"] = "x" * 5000
    payload = sent(pagerduty.post(a_target("pagerduty", "https://pd", b"R"), a_message(alert), START))[
        "payload"
    ]
    assert (payload["severity"], len(payload["summary"])) == ("warning", 1024)


def test_pagerduty_is_told_of_target_updates_as_changes():
    """A change event pages nobody, and stands beside the incident that follows."""
    event = Event("target_update", "t1 to t2", START)
    post = pagerduty.post(a_target("pagerduty", "https://pd", b"R0UT1NG"), a_message(event=event), START)
    assert post.url == "https://pd/v2/change/enqueue"
    assert sent(post)["payload"] == {
        "summary": "specd: target update: t1 to t2",
        "timestamp": "2025-11-29T15:26:40.250Z",
        "source": "specd",
    }


def test_slack_is_told_in_words_and_nothing_in_them_is_markup():
    """Colour by severity, the cause, how it ended, and where the runbook is, as a link where it can be one."""
    post = slack.post(a_target("slack"), a_message(an_alert(), an_alert(State.RESOLVED)), START)
    message = sent(post)
    assert message["text"] == "[FIRING:1] SpecdAcceptanceDrift chat t2"
    firing, resolved = message["attachments"]
    assert (firing["color"], firing["title"]) == ("#a30200", "Acceptance of &lt;chat&gt; fell")
    assert firing["text"] == "0.61 &amp; then 0.40\nSuspected cause: target update at noon"
    assert (resolved["color"], resolved["title_link"]) == ("#2eb886", RUNBOOK)
    assert "acceptance is back" in resolved["text"]
    here = an_alert()
    here.annotations["runbook_url"] = "docs/alerts.md#specdacceptancedrift"
    (told,) = sent(slack.post(a_target("slack"), a_message(here), START))["attachments"]
    assert told["text"].endswith("\nRunbook: docs/alerts.md#specdacceptancedrift")
    assert "title_link" not in told


def test_slack_shows_the_first_of_many():
    """A message has its limits; that there are more is said."""
    many = [an_alert(**{"class": f"c{number}"}) for number in range(33)]
    attachments = sent(slack.post(a_target("slack"), a_message(*many), START))["attachments"]
    assert len(attachments) == 21
    assert attachments[-1]["text"] == "… and 13 more"


def test_mqtt_carries_one_alert_and_the_id_of_the_message():
    """By which a subscriber tells a repetition from news."""
    payload = json.loads(mqtt.payload(a_message(an_alert())))
    assert (payload["id"], payload["status"], payload["fingerprint"]) == ("msg_1", "firing", "f1")
    assert (payload["startsAt"], payload["endsAt"]) == ("2025-11-29T15:26:40.250Z", None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "webhook"}, "needs a url, or a url_file that holds it"),
        ({"kind": "slack"}, "needs a url, or a url_file that holds it"),
        ({"url": "http://a", "url_file": "/u"}, "url and url_file both say where it is"),
        ({"kind": "pagerduty"}, "needs a secret_file with the routing key"),
        (
            {"kind": "alertmanager", "url": "http://a", "repeat_seconds": 0},
            "forgets what it is not told again",
        ),
        ({"kind": "webhook", "url": "ftp://a"}, "pattern"),
        ({"kind": "mqtt", "url": "http://a"}, "goes by the broker of"),
        ({"kind": "opsgenie", "url": "http://a"}, "Input should be"),
    ],
)
def test_a_receiver_that_lacks_something_is_refused_by_the_config(keys, message):
    """With a sentence that says what it needs."""
    with pytest.raises(ValidationError, match=message):
        ReceiverSection(name="ops", **keys)


def test_a_receiver_at_the_broker_needs_one():
    """Else its messages would wait for ever."""
    receivers = AlertsSection(receivers=(ReceiverSection(name="ops", kind="mqtt"),))
    with pytest.raises(ValidationError, match=r"ops is of kind mqtt: name a broker with mqtt.url"):
        Config(alerts=receivers)
    Config(alerts=receivers, mqtt=MqttSection(url="mqtt://broker"))


def test_what_is_set_in_a_running_daemon_leads_nowhere_private_and_reads_no_file():
    """Whoever can set keys is trusted less than the config file is; what is in force already may stay."""
    there = ReceiverSection(name="ops", url="http://127.0.0.1", secret_file="/etc/secret")
    good = ReceiverSection(name="new", url="https://new.example", private_addresses=False)
    old = AlertsSection(receivers=(there,))
    assert refused_when_set(AlertsSection(receivers=(there, good)), old) == ()
    for wrong, why in (
        ({"private_addresses": True}, "new may lead to private addresses: set private_addresses = false"),
        ({"secret_file": Path("/etc/passwd")}, "new names a file of this host"),
        ({"url": "", "url_file": Path("/etc/passwd")}, "new names a file of this host"),
    ):
        (sentence,) = refused_when_set(AlertsSection(receivers=(there, good.model_copy(update=wrong))), old)
        assert why in sentence


def test_a_url_that_is_a_secret_comes_from_a_file(tmp_path):
    """Slack's is; a file that holds something else is named and not quoted."""
    file = tmp_path / "url"
    section = ReceiverSection(name="ops", kind="slack", url_file=file)
    file.write_text("https://hooks.example/T0/B0/hush\n")
    assert usable(section).url == "https://hooks.example/T0/B0/hush"
    for text, why in (
        ("", "one word"),
        ("two words", "one word"),
        ("ftp://x/hush", "does not begin with http"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=why) as refused:
            usable(section)
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "fe80::1%eth0",
        "fd00::1",
        "100.64.0.1",
        "224.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_private_addresses_are_known_in_every_dress(address):
    """Loopback, private, link-local, shared, multicast, and IPv4 inside of IPv6."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are_let_through(address):
    """Both families."""
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
async def test_a_client_for_public_addresses_reaches_no_private_one(host):
    """Whatever its name looks like, the socket is never opened; without the rule it is."""
    async with alert_receiver() as receiver:
        url = receiver.url.replace("127.0.0.1", host)
        async with client(private=False) as guarded:
            with pytest.raises(httpx2.ConnectError, match="and private_addresses is false"):
                await guarded.post(url, content=b"{}")
        assert receiver.received == []


async def test_a_name_that_is_pointed_elsewhere_after_the_check_leads_nowhere(monkeypatch):
    """The name is resolved once, and the connection goes to the address that was checked."""
    asked, connected = [], []
    loop = asyncio.get_running_loop()

    async def resolve(host, port, **_):
        asked.append(host)
        return [(2, 1, 6, "", ("1.1.1.1" if len(asked) == 1 else "127.0.0.1", port))]

    async def connect(_self, host, port, *_):
        connected.append(host)
        raise OSError("no network here")

    monkeypatch.setattr(loop, "getaddrinfo", resolve, raising=False)
    async with client(private=False) as guarded:
        backend = guarded._transport._pool._network_backend
        monkeypatch.setattr(type(backend._backend), "connect_tcp", connect)
        with pytest.raises(OSError, match="no network"):
            await guarded.post("http://rebinding.example/hook", content=b"{}")
    assert (asked, connected) == (["rebinding.example"], ["1.1.1.1"])
