"""From a changed alert to a receiver: outcomes, order, groups, patience."""

import asyncio
import base64
import json
import logging
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from specd.alerts.attempts import Failure, judge, pause
from specd.alerts.bounds import Bounds
from specd.alerts.delivery import Deliveries
from specd.alerts.durable import DurableStore
from specd.alerts.events import Event
from specd.alerts.lifecycle import Alert, State
from specd.alerts.store import BOUNDS, Changes
from specd.alerts.telling import Notice
from specd.config.alerts import ReceiverSection
from specd.errors import UserError
from specd.telemetry.prometheus import Metrics
from tests.daemon.alert_receiver import Answer, alert_receiver
from tests.daemon.conftest import until

SECRET = "whsec_" + base64.b64encode(b"a key of at least 24 bytes").decode()
NEVER = Answer(0)
FIRING, RESOLVED = State.FIRING, State.RESOLVED


def an_alert(number=0, state=FIRING):
    labels = {"alertname": "SpecdAcceptanceCollapse", "class": f"c{number}"}
    ended = 2.0 if state is RESOLVED else None
    return Alert(f"f{number}", "test", labels, {"summary": "s"}, state, 1.0, ended)


def a_section(receiver, **keys):
    return ReceiverSection(**{"name": "ops", "url": receiver.url, "group_by": (), **keys})


class Rig:
    """Deliveries whose pauses are as long as the test says, and are remembered."""

    def __init__(self, *sections, directory=None, clock=None, paused=0.0, bounds=BOUNDS):
        self.metrics = Metrics(version="1")
        self.asked = []
        self.closed = False
        self.paused = paused
        options = {} if clock is None else {"clock": clock}
        self.store = DurableStore(directory, bounds=bounds)
        self.deliveries = Deliveries(sections, self.metrics.alarm, self.store, pauses=self._pause, **options)
        self.deliveries.start()

    def _pause(self, attempt, failure, rng):
        self.asked.append((attempt, failure))
        return self.paused

    def put(self, *alerts, to="ops", again=False):
        return self.deliveries.put(Changes(), [Notice(to, alert, again) for alert in alerts])

    def outcomes(self):
        """Counts by outcome, those that are 0 left out."""
        return {
            sample.labels["outcome"]: int(sample.value)
            for family in text_string_to_metric_families(self.metrics.render().decode())
            if family.name == "specd_webhook_deliveries"
            for sample in family.samples
            if sample.value
        }

    async def close(self, grace=5):
        if not self.closed:
            self.closed = True
            await self.deliveries.aclose(grace)

    async def see(self, **outcomes):
        await until(lambda: self.outcomes() == outcomes)


@pytest.fixture
async def rigs():
    made = []

    def make(*sections, **options):
        made.append(Rig(*sections, **options))
        return made[-1]

    yield make
    for rig in made:
        await rig.close()


@pytest.fixture
async def receiver():
    async with alert_receiver() as one:
        yield one


async def test_2xx_is_delivered_at_once(rigs, receiver):
    """One attempt, one outcome."""
    receiver.answers.append(Answer(204))
    rig = rigs(a_section(receiver))
    rig.put(an_alert())
    await rig.see(delivered=1)
    assert len(receiver.received) == 1


async def test_a_retry_has_the_same_id_and_body_and_the_time_of_the_attempt(rigs, receiver):
    """So that a receiver can tell a repetition, and does not refuse it as too old."""
    receiver.answers.extend([Answer(500), Answer(429)])
    now = [1000.0]

    def clock():
        return now[0]

    rig = rigs(a_section(receiver), clock=clock)
    rig._pause = None
    rig.put(an_alert())
    await rig.see(retried=2, delivered=1)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    assert len({one.body for one in receiver.received}) == 1
    assert {one.headers["webhook-timestamp"] for one in receiver.received} == {"1000"}


async def test_retry_after_is_passed_on(rigs, receiver):
    """The pause knows which attempt failed, and for how long the receiver wants to be left alone."""
    receiver.answers.extend([Answer(503, {"retry-after": "77"}), Answer(503)])
    rig = rigs(a_section(receiver))
    rig.put(an_alert())
    await rig.see(retried=2, delivered=1)
    assert [(attempt, failure.retry_after) for attempt, failure in rig.asked] == [(1, 77.0), (2, 0.0)]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
async def test_a_4xx_is_final(rigs, receiver, status):
    """Sending the same again would not help; it is counted as rejected."""
    receiver.answers.append(Answer(status))
    rig = rigs(a_section(receiver))
    rig.put(an_alert())
    await rig.see(rejected=1)
    assert len(receiver.received) == 1


@pytest.mark.parametrize("status", [301, 408, 425, 429, 500, 503])
async def test_a_passing_failure_is_tried_again(rigs, receiver, status):
    """The second attempt delivers. A redirect is a failure, and nothing is sent to where it points."""
    receiver.answers.append(Answer(status, {"location": "/elsewhere"}))
    rig = rigs(a_section(receiver))
    rig.put(an_alert())
    await rig.see(retried=1, delivered=1)
    assert [one.path for one in receiver.received] == ["/hook", "/hook"]


async def test_410_leaves_the_receiver_alone_until_a_reload(rigs, receiver):
    """Later alerts are rejected without an attempt; after `configure` they are sent again."""
    receiver.answers.append(Answer(410))
    rig = rigs(a_section(receiver))
    rig.put(an_alert(1))
    await rig.see(rejected=1)
    rig.put(an_alert(2))
    await rig.see(rejected=2)
    assert len(receiver.received) == 1
    rig.deliveries.configure([a_section(receiver)])
    rig.put(an_alert(3))
    await rig.see(rejected=2, delivered=1)


async def test_a_receiver_that_answers_too_late_has_failed(rigs, receiver):
    """The attempt ends after `timeout_seconds` and is repeated, whatever would have been answered."""
    receiver.answers.append(NEVER)
    rig = rigs(a_section(receiver, timeout_seconds=0.3))
    rig.put(an_alert())
    await until(lambda: rig.outcomes().get("delivered") == 1)
    assert rig.asked[0][1].text == "it did not answer within 0.3 s"


async def test_a_receiver_that_is_not_there_is_given_up_after_max_attempts(rigs, caplog):
    """If it is configured so; the log says who was not told of what."""
    async with alert_receiver() as receiver:
        section = a_section(receiver, max_attempts=3)
    rig = rigs(section)
    rig.put(an_alert())
    await rig.see(retried=2, gave_up=1)
    assert "receiver ops, SpecdAcceptanceCollapse firing, attempt 3: gave_up" in caplog.text


async def test_a_fault_of_ours_does_not_end_a_lane(rigs, receiver, caplog, monkeypatch):
    """It is logged with its traceback, and the message is tried again."""
    rig = rigs(a_section(receiver))
    send, faults = rig.deliveries._sender._send, iter([ZeroDivisionError("boom")])

    async def sometimes(target, message):
        for error in faults:
            raise error
        return await send(target, message)

    monkeypatch.setattr(rig.deliveries._sender, "_send", sometimes)
    rig.put(an_alert())
    await rig.see(retried=1, delivered=1)
    assert "boom" in caplog.text


async def test_one_alert_arrives_in_order_even_when_the_first_message_is_retried(rigs, receiver):
    """Resolved never overtakes firing."""
    receiver.answers.extend([Answer(500), Answer(200), Answer(500)])
    rig = rigs(a_section(receiver))
    rig.put(an_alert(1, FIRING))
    rig.put(an_alert(1, RESOLVED))
    rig.put(an_alert(1, FIRING))
    rig.put(an_alert(2))
    await until(lambda: rig.outcomes().get("delivered") == 4)
    messages = [json.loads(one.body) for one in receiver.received]
    statuses = [one["status"] for one in messages if one["commonLabels"]["class"] == "c1"]
    assert [status for at, status in enumerate(statuses) if at == 0 or statuses[at - 1] != status] == [
        "firing",
        "resolved",
        "firing",
    ]


async def test_a_stuck_alert_does_not_hold_up_another(rigs, receiver):
    """Order is kept per group, not per receiver."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver), paused=1000.0)
    rig.put(an_alert(1))
    await rig.see(retried=1)
    rig.put(an_alert(2))
    await rig.see(retried=1, delivered=1)


async def test_alerts_of_a_group_come_in_one_message(rigs, receiver):
    """What fires together is one page; its ends are another, since an alert is in a message once."""
    rig = rigs(a_section(receiver, group_by=("alertname",), group_wait_seconds=0.3))
    rig.put(an_alert(1), an_alert(2))
    rig.put(an_alert(3))
    rig.put(an_alert(2, RESOLVED))
    await rig.see(delivered=2)
    first, second = (json.loads(one.body) for one in receiver.received)
    assert [one["labels"]["class"] for one in first["alerts"]] == ["c1", "c2", "c3"]
    assert (first["status"], first["groupKey"]) == ("firing", '{}:{alertname="SpecdAcceptanceCollapse"}')
    assert first["commonLabels"] == first["groupLabels"] == {"alertname": "SpecdAcceptanceCollapse"}
    assert [(one["labels"]["class"], one["status"]) for one in second["alerts"]] == [("c2", "resolved")]


async def test_a_message_that_was_tried_takes_no_more_alerts(rigs, receiver):
    """A receiver that has it already, though we did not hear so, would drop the repetition with the news in it."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver, group_by=("alertname",), group_wait_seconds=0), paused=0.2)
    rig.put(an_alert(1))
    await rig.see(retried=1)
    rig.put(an_alert(2))
    await rig.see(retried=1, delivered=2)
    first, again, other = receiver.received
    assert (first.headers["webhook-id"], first.body) == (again.headers["webhook-id"], again.body)
    assert other.headers["webhook-id"] != first.headers["webhook-id"]


async def test_a_reminder_is_left_out_while_the_first_word_still_waits(rigs, receiver):
    """A receiver that was away for a day is not told the same six times."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver), paused=0.3)
    rig.put(an_alert(1))
    await rig.see(retried=1)
    rig.put(an_alert(1), again=True)
    await rig.see(retried=1, delivered=1)
    rig.put(an_alert(1), again=True)
    await rig.see(retried=1, delivered=2)


async def test_groups_that_are_made_otherwise_keep_the_order(rigs, receiver):
    """After a reload of `group_by`, news of an alert does not overtake what waits of it in its old group."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver, group_by=("alertname",), group_wait_seconds=0), paused=0.3)
    rig.put(an_alert(1))
    await rig.see(retried=1)
    rig.deliveries.configure([a_section(receiver)])
    rig.put(an_alert(1, RESOLVED))
    await rig.see(retried=1, delivered=2)
    assert [json.loads(one.body)["status"] for one in receiver.received] == ["firing", "firing", "resolved"]


async def test_what_waits_at_the_end_is_sent_after_the_next_start(rigs, receiver, tmp_path):
    """With the same id, and in order; nothing is counted as given up."""
    receiver.answers.append(Answer(503))
    rig = rigs(a_section(receiver), directory=tmp_path, paused=1000.0)
    rig.put(an_alert())
    rig.put(an_alert(state=RESOLVED))
    await rig.see(retried=1)
    await rig.close()
    assert rig.outcomes() == {"retried": 1}
    again = rigs(a_section(receiver), directory=tmp_path, clock=lambda: 1e10)
    await again.see(delivered=2)
    first, repeated, end = receiver.received
    assert first.headers["webhook-id"] == repeated.headers["webhook-id"] != end.headers["webhook-id"]
    assert json.loads(end.body)["status"] == "resolved"


async def test_closing_does_not_wait_for_a_receiver_that_hangs(rigs, receiver):
    """It has until the deadline; what it did not take waits for the next start."""
    receiver.answers.append(NEVER)
    rig = rigs(a_section(receiver))
    rig.put(an_alert())
    await until(lambda: receiver.received)
    async with asyncio.timeout(5):
        await rig.close(0.05)
    assert rig.outcomes() == {}


async def test_a_reload_reaches_what_is_pending(rigs, receiver, tmp_path):
    """A message that failed at the old address goes to the new one, signed with the new secret."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    async with alert_receiver() as old:
        old.answers.append(Answer(500))
        rig = rigs(a_section(old), paused=0.3)
        rig.put(an_alert())
        await rig.see(retried=1)
    rig.deliveries.configure([a_section(receiver, secret_file=secret)])
    await until(lambda: receiver.received)
    assert receiver.received[0].verified(SECRET)["status"] == "firing"


async def test_a_receiver_that_is_taken_out_gets_nothing_more(rigs, receiver, caplog):
    """What was pending for it is counted and logged."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver), paused=1000.0)
    rig.put(an_alert())
    await rig.see(retried=1)
    rig.deliveries.configure([])
    rig.put(an_alert())
    await rig.see(retried=1, gave_up=1)
    assert len(receiver.received) == 1
    assert "taken out of the config" in caplog.text


async def test_a_receiver_that_is_taken_out_at_the_wrong_moment_does_no_harm(rigs, receiver, monkeypatch):
    """Between the look into the outbox and the first attempt; others are told as before."""
    other = a_section(receiver, name="other")
    rig = rigs(a_section(receiver), other)
    take = rig.deliveries._take

    async def taken():
        messages = await take()
        if messages:
            rig.deliveries.configure([other])
        return messages

    monkeypatch.setattr(rig.deliveries, "_take", taken)
    rig.put(an_alert())
    await rig.see(gave_up=1)
    rig.put(an_alert(), to="other")
    await rig.see(gave_up=1, delivered=1)


async def test_an_outbox_that_cannot_be_looked_at_is_looked_at_again(rigs, receiver, monkeypatch, caplog):
    """The fault is logged with its traceback; the next news is another chance."""
    rig = rigs(a_section(receiver))
    take, faults = rig.deliveries._take, iter([ZeroDivisionError("boom")])

    async def sometimes():
        for error in faults:
            raise error
        return await take()

    monkeypatch.setattr(rig.deliveries, "_take", sometimes)
    rig.put(an_alert(1))
    await until(lambda: "boom" in caplog.text)
    rig.put(an_alert(2))
    await rig.see(delivered=2)


async def test_a_full_outbox_is_told_of(rigs, receiver, caplog):
    """What had to go is an error in the log and counted; the receiver hears the rest when it is back."""
    receiver.answers.extend([NEVER] * 3)
    rig = rigs(a_section(receiver, timeout_seconds=0.5), bounds=Bounds(messages=4))
    rig.put(*(an_alert(number) for number in range(3)))
    await until(lambda: len(receiver.received) == 3)
    await rig.put(*(an_alert(number) for number in range(3, 9)))
    assert "the outbox is full: receiver ops will not be told of" in caplog.text
    await until(lambda: rig.outcomes().get("delivered", 0) + rig.outcomes()["dropped"] == 9)


async def test_a_reload_with_an_unusable_receiver_changes_nothing(rigs, receiver, tmp_path):
    """The sentence names the receiver, and the old one goes on."""
    rig = rigs(a_section(receiver))
    bad = a_section(receiver, name="pager", secret_file=tmp_path / "missing")
    with pytest.raises(UserError, match=r"receiver pager: the secret file .* cannot be read"):
        rig.deliveries.configure([bad])
    with pytest.raises(UserError, match="receiver pager: its url is not one"):
        rig.deliveries.configure([ReceiverSection(name="pager", url="http://[::1")])
    rig.put(an_alert())
    await rig.see(delivered=1)
    assert json.loads(receiver.received[0].body)["receiver"] == "ops"


async def test_neither_secret_nor_url_reaches_the_log(rigs, receiver, tmp_path, caplog):
    """At the lowest level, over failures and success."""
    caplog.set_level(logging.DEBUG)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    receiver.answers.extend([Answer(500), Answer(200), Answer(400)])
    rig = rigs(a_section(receiver, secret_file=secret))
    rig.put(an_alert())
    await rig.see(retried=1, delivered=1)
    rig.put(an_alert())
    await rig.see(retried=1, delivered=1, rejected=1)
    assert "attempt 2: delivered" in caplog.text
    for hidden in (SECRET, SECRET.removeprefix("whsec_"), "a key of at least", receiver.url):
        assert hidden not in caplog.text


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_changes_no_pause(rigs, receiver, jump):
    """The next attempt comes as long after the last one as it was to come, not an hour later, nor at once."""
    receiver.answers.append(Answer(500))
    shift = [0.0]
    rig = rigs(a_section(receiver), clock=lambda: time.time() + shift[0], paused=900.0)
    rig.put(an_alert())
    await rig.see(retried=1)
    shift[0] = jump
    rig.deliveries._news.set()

    async def remaining():
        return (await rig.store.run(lambda store: store.due()))["ops"] - time.time() - shift[0]

    async with asyncio.timeout(20):
        while not 800 < await remaining() < 901:  # noqa: ASYNC110 - the outbox tells nobody
            await asyncio.sleep(0.01)
    assert rig.outcomes() == {"retried": 1}


async def test_the_health_of_each_receiver_is_shown(rigs, receiver):
    """Whether it fails, why, what waits, and when it last took something; on /metrics too."""
    receiver.answers.append(Answer(500))
    rig = rigs(a_section(receiver), paused=0.3)
    rig.put(an_alert())
    await rig.see(retried=1)
    await until(lambda: rig.deliveries.health()[0]["pending"] == 1)
    assert {
        "failing": True,
        "error": "it answered 500",
        "last_success": None,
    }.items() <= rig.deliveries.health()[0].items()
    text = rig.metrics.render().decode()
    assert 'specd_receiver_failing{receiver="ops"} 1.0' in text
    assert "specd_webhook_outbox 1.0" in text
    await rig.see(retried=1, delivered=1)
    await until(lambda: rig.deliveries.health()[0]["pending"] == 0)
    assert {"failing": False, "error": ""}.items() <= rig.deliveries.health()[0].items()


async def test_target_updates_are_told_to_those_that_take_them(rigs, receiver, tmp_path):
    """PagerDuty as a change event; a webhook hears of alerts only."""
    key = tmp_path / "key"
    key.write_text("R0UT1NG")
    pager = ReceiverSection(name="pager", kind="pagerduty", url=receiver.url, secret_file=key)
    rig = rigs(a_section(receiver), pager)
    events = (Event("target_update", "t1 to t2", 1.0), Event("config_reload", "k", 2.0))
    rig.deliveries.put(Changes(events=events), [])
    await rig.see(delivered=1)
    (told,) = receiver.received
    assert told.path == "/hook/v2/change/enqueue"
    assert json.loads(told.body)["payload"]["summary"] == "specd: target update: t1 to t2"


@given(st.integers(1, 100), st.floats(0, 3600), st.randoms(use_true_random=False))
def test_the_pause_grows_to_a_cap_and_is_never_less_than_asked_for(attempt, retry_after, rng):
    """Full jitter: anything from 0 to twice the last bound, at most five minutes, or what was asked for."""
    seconds = pause(attempt, Failure("", retry_after=retry_after), rng)
    assert retry_after <= seconds <= max(retry_after, min(300.0, 2.0 ** (attempt - 1)))


@given(st.integers(1, 100), st.randoms(use_true_random=False))
def test_the_pause_is_short_where_another_attempt_is_cheap(attempt, rng):
    """What waited for a broker does not wait for minutes once that is back."""
    assert pause(attempt, Failure("", longest_pause=5.0), rng) <= 5.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (formatdate(1090, usegmt=True), 90.0),
        (formatdate(10, usegmt=True), 0.0),
        ("999999999", 3600.0),
        ("-5", 0.0),
        ("nan", 0.0),
        ("soon", 0.0),
        (None, 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    """Nonsense and the past count as no wish, and no wish is longer than an hour."""
    failure = judge(503, header, now=1000.0)
    assert failure is not None
    assert failure.retry_after == seconds
