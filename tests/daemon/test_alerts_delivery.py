"""From a changed alert to a receiver: outcomes, order, patience."""

import asyncio
import base64
import json
import logging
from email.utils import formatdate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from specd.alerts.attempts import Failure, judge, pause
from specd.alerts.delivery import Deliveries
from specd.alerts.lifecycle import Alert, State
from specd.config.alerts import ReceiverSection
from specd.errors import UserError
from specd.telemetry.prometheus import Metrics
from tests.daemon.alert_receiver import Answer, alert_receiver
from tests.daemon.conftest import until

SECRET = "whsec_" + base64.b64encode(b"a key of at least 24 bytes").decode()
NEVER = Answer(0)


class Naps:
    """A sleep that returns at once and remembers for how long it was asked."""

    def __init__(self):
        self.asked = []

    async def __call__(self, seconds):
        self.asked.append(seconds)
        await asyncio.sleep(0)


async def forever(_seconds):
    await asyncio.Event().wait()


def an_alert(number=0, state=State.FIRING):
    labels = {"alertname": "SpecdAcceptanceCollapse", "class": f"c{number}"}
    ended = 2.0 if state is State.RESOLVED else None
    return Alert(f"f{number}", "test", labels, {"summary": "s"}, state, 1.0, ended)


def a_section(receiver, **keys):
    return ReceiverSection(**{"name": "ops", "url": receiver.url, **keys})


def outcomes(metrics):
    """Counts by outcome, those that are 0 left out."""
    return {
        sample.labels["outcome"]: int(sample.value)
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name == "specd_webhook_deliveries"
        for sample in family.samples
        if sample.value
    }


@pytest.fixture
async def receiver():
    async with alert_receiver() as one:
        yield one


@pytest.fixture
def metrics():
    return Metrics(version="1")


async def test_2xx_is_delivered_at_once(receiver, metrics):
    """One attempt, one outcome."""
    receiver.answers.append(Answer(204))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    await deliveries.aclose(10)
    assert len(receiver.received) == 1
    assert outcomes(metrics) == {"delivered": 1}


async def test_a_retry_has_the_same_id_and_body_and_the_time_of_the_attempt(receiver, metrics):
    """So that a receiver can tell a repetition, and does not refuse it as too old."""
    receiver.answers.extend([Answer(500), Answer(429)])
    ticks = iter([1000.0, 2000.0, 3000.0])
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=Naps(), clock=lambda: next(ticks))
    deliveries.put(an_alert())
    await until(lambda: len(receiver.received) == 3)
    await deliveries.aclose(10)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    assert len({one.body for one in receiver.received}) == 1
    assert [one.headers["webhook-timestamp"] for one in receiver.received] == ["1000", "2000", "3000"]
    assert outcomes(metrics) == {"retried": 2, "delivered": 1}


async def test_retry_after_is_waited_for(receiver, metrics):
    """The second attempt comes no sooner than the receiver asked for; the third is ours to time."""
    receiver.answers.extend([Answer(503, {"retry-after": "77"}), Answer(503)])
    naps = Naps()
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=naps)
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 2, "delivered": 1})
    await deliveries.aclose(10)
    assert naps.asked[0] == 77
    assert 0 <= naps.asked[1] <= 2


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
async def test_a_4xx_is_final(receiver, metrics, status):
    """Sending the same again would not help; it is counted as rejected."""
    receiver.answers.append(Answer(status))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    await deliveries.aclose(10)
    assert len(receiver.received) == 1
    assert outcomes(metrics) == {"rejected": 1}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_a_passing_failure_is_tried_again(receiver, metrics, status):
    """The second attempt delivers."""
    receiver.answers.append(Answer(status))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=Naps())
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1, "delivered": 1})
    await deliveries.aclose(10)


async def test_a_redirect_is_a_failure_and_is_not_followed(receiver, metrics):
    """Nothing is sent to where the receiver points."""
    receiver.answers.extend([Answer(301, {"location": "/elsewhere"})] * 2)
    deliveries = Deliveries([a_section(receiver, max_attempts=2)], metrics, sleep=Naps())
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1, "gave_up": 1})
    await deliveries.aclose(10)
    assert [one.path for one in receiver.received] == ["/hook", "/hook"]


async def test_410_leaves_the_receiver_alone_until_a_reload(receiver, metrics):
    """Later alerts are rejected without an attempt; after `configure` they are sent again."""
    receiver.answers.append(Answer(410))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert(1))
    await until(lambda: outcomes(metrics) == {"rejected": 1})
    deliveries.put(an_alert(2))
    await until(lambda: outcomes(metrics) == {"rejected": 2})
    assert len(receiver.received) == 1
    deliveries.configure([a_section(receiver)])
    deliveries.put(an_alert(3))
    await until(lambda: outcomes(metrics) == {"rejected": 2, "delivered": 1})
    await deliveries.aclose(10)


async def test_a_receiver_that_never_answers_times_out(receiver, metrics):
    """The attempt ends after `timeout_seconds` and is repeated."""
    receiver.answers.append(NEVER)
    deliveries = Deliveries([a_section(receiver, timeout_seconds=0.05)], metrics, sleep=Naps())
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1, "delivered": 1})
    await deliveries.aclose(10)


async def test_a_receiver_that_is_not_there_is_given_up_after_max_attempts(metrics, caplog):
    """The log says who was not told of what."""
    async with alert_receiver() as receiver:
        section = a_section(receiver, max_attempts=3)
    deliveries = Deliveries([section], metrics, sleep=Naps())
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 2, "gave_up": 1})
    await deliveries.aclose(10)
    assert "receiver ops, SpecdAcceptanceCollapse firing, attempt 3: gave_up" in caplog.text


async def test_a_fault_of_ours_does_not_end_a_lane(receiver, metrics, caplog):
    """It is logged with its traceback, and the message is tried again."""
    faults = iter([ZeroDivisionError("boom")])

    def clock():
        for error in faults:
            raise error
        return 5.0

    deliveries = Deliveries([a_section(receiver)], metrics, sleep=Naps(), clock=clock)
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1, "delivered": 1})
    await deliveries.aclose(10)
    assert "boom" in caplog.text


async def test_one_alert_arrives_in_order_even_when_the_first_message_is_retried(receiver, metrics):
    """Resolved never overtakes firing; another alert does not wait for it."""
    receiver.answers.extend([Answer(500), Answer(200), Answer(500)])
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=Naps(), rng=Random(1))
    for state in (State.FIRING, State.RESOLVED, State.FIRING):
        deliveries.put(an_alert(1, state))
    deliveries.put(an_alert(2))
    await until(lambda: outcomes(metrics).get("delivered") == 4)
    await deliveries.aclose(10)
    messages = [json.loads(one.body) for one in receiver.received]
    statuses = [one["status"] for one in messages if one["commonLabels"]["class"] == "c1"]
    assert [status for at, status in enumerate(statuses) if at == 0 or statuses[at - 1] != status] == [
        "firing",
        "resolved",
        "firing",
    ]


async def test_a_stuck_alert_does_not_hold_up_another(receiver, metrics):
    """Order is kept per alert, not per receiver."""
    receiver.answers.append(Answer(500))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert(1))
    await until(lambda: outcomes(metrics) == {"retried": 1})
    deliveries.put(an_alert(2))
    await until(lambda: outcomes(metrics) == {"retried": 1, "delivered": 1})
    await deliveries.aclose(10)


async def test_resolved_is_not_told_to_a_receiver_that_does_not_want_it(receiver, metrics):
    """`send_resolved = false`."""
    deliveries = Deliveries([a_section(receiver, send_resolved=False)], metrics, sleep=forever)
    deliveries.put(an_alert(1))
    deliveries.put(an_alert(1, State.RESOLVED))
    await deliveries.aclose(10)
    assert [json.loads(one.body)["status"] for one in receiver.received] == ["firing"]


async def test_closing_gives_what_waits_one_attempt_now(receiver, metrics):
    """A message in the middle of a long pause is sent before the end."""
    receiver.answers.append(Answer(503))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1})
    await deliveries.aclose(10)
    assert outcomes(metrics) == {"retried": 1, "delivered": 1}


async def test_closing_does_not_hammer_a_receiver_that_still_fails(receiver, metrics):
    """One attempt each and no more, well before the deadline."""
    receiver.answers.extend([Answer(503)] * 5)
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1})
    async with asyncio.timeout(5):
        await deliveries.aclose(60)
    assert len(receiver.received) == 2
    assert outcomes(metrics) == {"retried": 1, "gave_up": 1}


async def test_closing_ends_at_its_deadline_and_says_what_is_lost(receiver, metrics, caplog):
    """A receiver that hangs does not keep the daemon."""
    receiver.answers.append(NEVER)
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    deliveries.put(an_alert(state=State.RESOLVED))
    await until(lambda: receiver.received)
    async with asyncio.timeout(5):
        await deliveries.aclose(0.05)
    assert outcomes(metrics) == {"gave_up": 2}
    for state in ("firing", "resolved"):
        assert f"receiver ops was not told of SpecdAcceptanceCollapse {state}: specd is ending" in caplog.text


async def test_a_reload_reaches_what_is_pending(receiver, metrics, tmp_path):
    """A message that failed at the old address goes to the new one, signed with the new secret."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    waiting = asyncio.Event()
    async with alert_receiver() as old:
        old.answers.append(Answer(500))
        deliveries = Deliveries([a_section(old)], metrics, sleep=lambda _: waiting.wait())
        deliveries.put(an_alert())
        await until(lambda: outcomes(metrics) == {"retried": 1})
    deliveries.configure([a_section(receiver, secret_file=secret)])
    waiting.set()
    await until(lambda: receiver.received)
    await deliveries.aclose(10)
    assert receiver.received[0].verified(SECRET)["status"] == "firing"


async def test_a_receiver_that_is_taken_out_gets_nothing_more(receiver, metrics, caplog):
    """What was pending for it is counted and logged."""
    receiver.answers.append(Answer(500))
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    deliveries.put(an_alert())
    await until(lambda: outcomes(metrics) == {"retried": 1})
    deliveries.configure([])
    deliveries.put(an_alert())
    await deliveries.aclose(10)
    assert len(receiver.received) == 1
    assert outcomes(metrics) == {"retried": 1, "gave_up": 1}
    assert "taken out of the config" in caplog.text


async def test_a_reload_with_an_unusable_receiver_changes_nothing(receiver, metrics, tmp_path):
    """The sentence names the receiver, and the old one goes on."""
    deliveries = Deliveries([a_section(receiver)], metrics, sleep=forever)
    bad = a_section(receiver, name="pager", secret_file=tmp_path / "missing")
    with pytest.raises(UserError, match=r"receiver pager: the secret file .* cannot be read"):
        deliveries.configure([bad])
    with pytest.raises(UserError, match="receiver pager: its url is not one"):
        deliveries.configure([ReceiverSection(name="pager", url="http://[::1")])
    deliveries.put(an_alert())
    await deliveries.aclose(10)
    assert json.loads(receiver.received[0].body)["receiver"] == "ops"


async def test_neither_secret_nor_url_reaches_the_log(receiver, metrics, tmp_path, caplog):
    """At the lowest level, over failures and success."""
    caplog.set_level(logging.DEBUG)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    receiver.answers.extend([Answer(500), Answer(200), Answer(400)])
    deliveries = Deliveries([a_section(receiver, secret_file=secret)], metrics, sleep=Naps())
    deliveries.put(an_alert())
    await until(lambda: "delivered" in outcomes(metrics))
    deliveries.put(an_alert())
    await until(lambda: "rejected" in outcomes(metrics))
    await deliveries.aclose(10)
    assert "attempt 2: delivered" in caplog.text
    for hidden in (SECRET, SECRET.removeprefix("whsec_"), "a key of at least", receiver.url):
        assert hidden not in caplog.text


@given(st.integers(1, 100), st.floats(0, 3600), st.randoms(use_true_random=False))
def test_the_pause_grows_to_a_cap_and_is_never_less_than_asked_for(attempt, retry_after, rng):
    """Full jitter: anything from 0 to twice the last bound, at most five minutes, or what was asked for."""
    seconds = pause(attempt, Failure("", retry_after=retry_after), rng)
    assert retry_after <= seconds <= max(retry_after, min(300.0, 2.0 ** (attempt - 1)))


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
