"""Commands by MQTT: which are carried out, and what is answered where; what is told; which topics are whose."""

import asyncio
import json

import pytest

from specd.config.mqtt import MqttSection
from specd.errors import UserError
from specd.mqtt.acts import acts_of
from specd.mqtt.commands import arguments
from specd.mqtt.link import LARGEST
from specd.mqtt.state import Told, told_of
from specd.mqtt.topics import Topics
from specd.reloading import Reloaded
from specd.target.updates import Outcome
from tests.daemon.bridge_rig import bridged
from tests.daemon.mosquitto import needs_mosquitto, spying

RELOAD = "specd/n1/cmd/reload"


class Deeds:
    """Acts that note what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.held = asyncio.Event()

    @property
    def acts(self) -> dict:
        return {"reload": self.reload, "set": self.hold, "silence": self.fail}

    async def reload(self, asked: dict) -> dict:
        self.asked.append(asked)
        return {"result": "ok"}

    async def hold(self, asked: dict) -> dict:
        self.asked.append(asked)
        await self.held.wait()
        return {}

    async def fail(self, asked: dict) -> dict:
        raise ZeroDivisionError


@needs_mosquitto
async def test_a_listed_command_is_carried_out_and_answered(broker):
    """Test that the payload arrives, that the answer goes to the response topic with its tag, and that the topic of
    the fleet does the same.
    """
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("reload",)), spying(broker) as spy:
        answer = await spy.ask(RELOAD, {"a": 1})
        assert answer == {"node": "n1", "command": "reload", "ok": True, "result": "ok"}
        await spy.ask("specd/all/cmd/reload")
        assert deeds.asked == [{"a": 1}, {}]


@needs_mosquitto
@pytest.mark.parametrize(
    ("topic", "payload", "why"),
    [
        (
            "specd/n1/cmd/set",
            {},
            "mqtt.commands allows reload, silence, target: add the command there and reload",
        ),
        ("specd/n1/cmd/nonsense", {}, "mqtt.commands allows reload"),
        ("specd/n1/cmd/target", {}, "this version of specd cannot do that by MQTT; it can do reload"),
        (RELOAD, b"{", "the payload must be a JSON object"),
        (RELOAD, b"\xff", "the payload must be a JSON object"),
        (RELOAD, [1], "the payload must be a JSON object"),
        (RELOAD, b"[" * 60_000, "the payload must be a JSON object"),
        ("specd/n1/cmd/silence", {}, "specd failed at it; its log says more"),
    ],
)
async def test_a_refusal_is_a_sentence(broker, topic, payload, why):
    """Test that what is not listed, not built, not JSON or broken is answered by what to do, and nothing is done."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("reload", "silence", "target")), spying(broker) as spy:
        answer = await spy.ask(topic, payload)
        assert answer["ok"] is False
        assert answer["error"].startswith(why)
        assert deeds.asked == []


@needs_mosquitto
async def test_retained_commands_are_refused_now_and_at_every_reconnect(broker):
    """Test that a command with the retain flag is not carried out, neither at once nor when it is found later."""
    deeds = Deeds()
    async with spying(broker) as spy:
        async with bridged(broker, deeds.acts, commands=("reload",)):
            assert "retained" in (await spy.ask(RELOAD, {"a": 1}, retain=True))["error"]
        answered = len(spy.at("answers/spy"))
        async with bridged(broker, deeds.acts, commands=("reload",)):
            await spy.until(lambda spy: len(spy.at("answers/spy")) > answered)
            assert "retained" in spy.at("answers/spy")[-1]["error"]
    assert deeds.asked == []


@needs_mosquitto
async def test_without_a_list_nothing_is_listened_for(broker):
    """Test that with no command configured the broker does not even deliver one."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts), spying(broker) as spy:
        await spy.say(RELOAD, answer_at="answers/spy")
        await spy.say("marker", {})
        await spy.until(lambda spy: spy.at("marker"))
        subscriptions = [line for line in broker.log.splitlines() if "specd/" in line and "cmd" in line]
        assert not any("(QoS" in line for line in subscriptions)
        assert deeds.asked == spy.at("answers/spy") == []


@needs_mosquitto
async def test_answers_go_nowhere_where_commands_are_read(broker):
    """Test that a command cannot have its answer published as another command or as a node's own word."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("reload",)), spying(broker) as spy:
        for answer_at in ("specd/all/cmd/reload", "specd/n2/state", "specd/n1/availability"):
            await spy.say(RELOAD, {}, answer_at=answer_at)
        await spy.ask(RELOAD)
        assert len(deeds.asked) == 4
        assert spy.at("specd/all/cmd/reload") == spy.at("specd/n2/state") == []
        assert spy.at("specd/n1/availability") == ["online"]


@needs_mosquitto
async def test_slow_commands_do_not_hold_up_others_and_are_bounded(broker):
    """Test that eight may be under way, a ninth is refused, and those eight are answered when they end."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("set", "reload")), spying(broker) as spy:
        slow = [asyncio.ensure_future(spy.ask("specd/n1/cmd/set", {"n": n})) for n in range(7)]
        await spy.until(lambda _: len(deeds.asked) == 7)
        assert (await spy.ask(RELOAD))["ok"] is True
        slow.append(asyncio.ensure_future(spy.ask("specd/n1/cmd/set", {"n": 7})))
        await spy.until(lambda _: len(deeds.asked) == 9)
        assert "wait for an answer" in (await spy.ask(RELOAD))["error"]
        deeds.held.set()
        assert all(answer["ok"] for answer in await asyncio.gather(*slow))


@needs_mosquitto
async def test_a_packet_that_is_too_large_never_arrives(broker):
    """Test that the broker keeps back what is larger than specd says it takes, and that the next command is served."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("reload",)), spying(broker) as spy:
        await spy.say(RELOAD, json.dumps({"a": "x" * LARGEST}).encode())
        await spy.ask(RELOAD, {"b": 1})
        assert deeds.asked == [{"b": 1}]


@needs_mosquitto
async def test_an_answer_outlives_the_connection_that_brought_the_command(broker):
    """Test that a command that was under way when the broker went is answered over the next connection."""
    deeds = Deeds()
    async with bridged(broker, deeds.acts, commands=("set",)) as rig:
        async with spying(broker) as spy:
            await spy.say("specd/n1/cmd/set", {}, answer_at="answers/spy", tag=b"1")
            await spy.until(lambda _: deeds.asked)
        broker.close()
        broker.start()
        async with spying(broker) as spy:
            deeds.held.set()
            await spy.until(lambda spy: spy.at("answers/spy"))
            assert spy.at("answers/spy")[0]["ok"] is True
        assert rig.connected


class Daemon:
    """Notes what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    async def reload(self, trigger: str, *, partial: bool) -> Reloaded:
        self.asked.append((trigger, partial))
        return Reloaded((), ())

    async def update_target(self, path: str, revision: str | None) -> Outcome:
        self.asked.append((path, revision))
        return Outcome(True, "done", "t2", "d1", 1.5)

    async def roll_back(self) -> Outcome:
        return await self.update_target("back", None)


async def test_the_target_is_changed_by_the_calls_of_the_admin_listener():
    """Test that path, revision and rollback reach them, and that what is ambiguous or misspelt is refused."""
    daemon = Daemon()
    target = acts_of(daemon)["target"]
    assert (await target({"path": "/m", "revision": "r"}))["target_revision"] == "t2"
    await target({"rollback": True})
    assert daemon.asked == [("/m", "r"), ("back", None)]
    for wrong in ({}, {"path": "/m", "rollback": True}, {"pth": "/m"}, {"path": 1}):
        with pytest.raises(UserError, match=r"say which target|the payload cannot be used"):
            await target(wrong)
    assert len(daemon.asked) == 2


async def test_a_reload_may_be_partial():
    """Test that the payload says so, and that a misspelt one is refused instead of being a full one."""
    daemon = Daemon()
    reload = acts_of(daemon)["reload"]
    assert await reload({}) == {"result": "ok", "changes": [], "pending": [], "notes": ()}
    await reload({"partial": True})
    assert daemon.asked == [("mqtt", False), ("mqtt", True)]
    with pytest.raises(UserError, match="the payload cannot be used"):
        await reload({"partail": True})


def test_an_empty_payload_is_an_empty_object():
    """Test that no payload, and blanks alone, are no fault."""
    assert arguments(b"") == arguments(b" \n") == arguments(b"{}") == {}


@pytest.mark.parametrize(
    ("topic", "good"),
    [
        ("answers/me", True),
        ("specd-answers", True),
        ("site/specd/n1/answers/me", True),
        ("", False),
        ("answers/#", False),
        ("answers/+", False),
        ("$SYS/x", False),
        ("site/specd/n1/cmd/reload", False),
        ("site/specd/other/state", False),
        ("site/specd/other/alerts", False),
    ],
)
def test_where_answers_may_go(topic, good):
    """Test that wildcards, the broker's own topics and those of any node are no place for an answer."""
    assert Topics("site/specd", "n1").answerable(topic) is good


def test_verbs_are_read_off_our_own_topics_only():
    """Test that another node's command is none for us."""
    topics = Topics("specd", "n1")
    assert topics.verb("specd/n1/cmd/reload") == topics.verb("specd/all/cmd/reload") == "reload"
    assert topics.verb("specd/n2/cmd/reload") is None
    assert topics.verb("specd/n1/state") is None
    assert topics.commands == ("specd/n1/cmd/+", "specd/all/cmd/+")


STATUS = {
    "version": "1",
    "ready": True,
    "unready_because": None,
    "model": {
        "name": "m",
        "target_revision": "t",
        "draft_revision": "d",
        "quantization": "none",
        "source": "/m",
    },
    "load": {"state": "full", "running": 1, "waiting": 0, "admitted": 1},
    "drafts": {
        "tokens_per_second": 9.0,
        "k": {"ngram": {2: 3, 4: 1}, "none": {0: 4}},
        "acceptance": {},
        "goodput": [],
    },
    "acceptance": {"chat": 0.5},
    "alerts": {"pending": 0, "firing": 1},
    "config": {"hash": "h", "last_reload": {}},
}
ALERTS = [
    {
        "name": "A",
        "state": "firing",
        "fingerprint": "f",
        "startsAt": "now",
        "labels": {"class": "chat"},
        "annotations": {"summary": "it fell"},
    },
    {"name": "B", "state": "pending", "fingerprint": "g", "startsAt": "now", "labels": {}, "annotations": {}},
]
CHANGED = {"unix_time": 2.0, "by": "update", "previous": "s"}
TARGET = {"doing": None, "last": {"unix_time": 3.0, "ok": False, "text": "no room"}, "changed": CHANGED}


def test_what_is_told_is_what_the_admin_listener_shows():
    """Test each field's source, and that k is the mean of all rounds that are remembered."""
    told = told_of(STATUS, ALERTS, TARGET, 1.0)
    pair = {"name": "m", "target_revision": "t", "draft_revision": "d", "quantization": "none"}
    assert told.target == {**pair, "changed": CHANGED}
    assert told.state["k"] == pytest.approx((3 * 2 + 4 + 4 * 0) / 8)
    alert = {"name": "A", "fingerprint": "f", "startsAt": "now", "class": "chat", "summary": "it fell"}
    assert told.state["firing"] == [alert]
    assert (told.state["doing"], told.state["refused"]) == (None, {"unix_time": 3.0, "text": "no room"})
    quiet = {"doing": "update to /m", "last": {**TARGET["last"], "ok": True}, "changed": None}
    later = told_of({**STATUS, "drafts": {"tokens_per_second": 0, "k": {}}}, [], quiet, 1.0)
    assert (later.state["k"], later.state["doing"], later.state["refused"]) == (None, "update to /m", None)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"time": 9.0, "running": 7, "waiting": 3, "tokens_per_second": 1.0}, True),
        ({"acceptance": {"chat": 0.54}}, True),
        ({"acceptance": {"chat": 0.56}}, False),
        ({"acceptance": {"chat": None}}, False),
        ({"acceptance": {"chat": 0.5, "code": None}}, False),
        ({"k": 1.9}, True),
        ({"k": 2.5}, False),
        ({"k": None}, False),
        ({"load": "off"}, False),
        ({"firing": []}, False),
        ({"ready": False}, False),
        ({"doing": "update to /m"}, False),
    ],
)
def test_noise_is_no_news(change, same):
    """Test which changes are worth a message."""
    told = told_of(STATUS, ALERTS, TARGET, 1.0)
    assert told.same_state(Told({**told.state, **change}, told.target)) is same


def test_topics_are_checked_where_they_are_configured():
    """Test that an empty prefix level is refused, and several levels are not."""
    assert MqttSection(prefix="site/specd").prefix == "site/specd"
    for prefix in ("", "a//b", "/a", "a/"):
        with pytest.raises(ValueError, match="one level, or several"):
            MqttSection(prefix=prefix)
