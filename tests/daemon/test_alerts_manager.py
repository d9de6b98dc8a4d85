"""The alarm as a whole: from engine steps to a verified webhook, and what a reload does to it."""

import base64
import copy
import logging

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api import KVUsage, PhaseSeconds, Round, StepReport
from policies.base import LoadState
from specd.alerts.delivery import Deliveries
from specd.alerts.durable import DurableStore
from specd.alerts.finding import Finding, Verdict
from specd.alerts.health import Health, host_memory
from specd.alerts.lifecycle import State
from specd.alerts.manager import AlertManager
from specd.alerts.silences import new_silence
from specd.alerts.store import Saved
from specd.alerts.telling import Listener
from specd.config.alerts import AlertsSection, ReceiverSection, RuleSection
from specd.errors import UserError
from specd.telemetry.prometheus import Metrics
from tests.daemon.alert_receiver import Answer, alert_receiver
from tests.daemon.conftest import until

SECRET = "whsec_" + base64.b64encode(b"a key of at least 24 bytes").decode()


class Clock:
    def __init__(self):
        self.now = 1764430000.0

    def __call__(self):
        return self.now


class Done:
    """Nothing to wait for."""

    def __await__(self):
        yield from ()


class Told:
    """An outbox that keeps what it is given."""

    def __init__(self):
        self.alerts = []
        self.changes = []
        self.repeat_seconds = 0.0

    def listeners(self):
        return [Listener("ops", self.repeat_seconds, send_resolved=True)]

    def put(self, changes, notices):
        self.changes.append(changes)
        self.alerts += [notice.alert for notice in notices]
        return Done()

    def configure(self, receivers):
        if any(receiver.name == "bad" for receiver in receivers):
            raise UserError("receiver bad: cannot be used")

    def states(self):
        return [alert.state for alert in self.alerts]


def a_step(accepted, *, drafted=4, traffic_class="chat", count=1):
    """A step of `count` rounds that each kept `accepted` tokens of `drafted`."""
    examined = min(accepted + 1, drafted)
    one = Round("r", traffic_class, "ngram", drafted, drafted, examined, accepted, "acceptance", "")
    return StepReport(
        step=1,
        phases=PhaseSeconds(0, 0, 0, 0),
        rows=1,
        prefill_rows=0,
        running=1,
        waiting=0,
        committed=1,
        kv=KVUsage(1, 1),
        load_state=LoadState.FULL,
        rounds=[one] * count,
        outputs=[],
    )


def a_rule(**keys):
    return RuleSection(
        **{
            "below": 0.5,
            "for_seconds": 3.0,
            "keep_seconds": 0.0,
            "window_seconds": 5.0,
            "min_examined": 4,
            **keys,
        }
    )


def alerts_metric(metrics):
    return {
        sample.labels["state"]: int(sample.value)
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name == "specd_alerts"
        for sample in family.samples
        if sample.labels["name"] == "SpecdAcceptanceCollapse"
    }


class Rig:
    """A manager on a clock of our own, with an outbox that keeps what it is told."""

    def __init__(self, *rules, saved=None, grace=0.0):
        self.clock, self.told, self.metrics = Clock(), Told(), Metrics(version="1")
        section = AlertsSection(rules=rules, update_grace_seconds=grace)
        self.memory = 0.5
        health = Health(lambda: self.memory)
        self.manager = AlertManager(
            section, self.metrics.alarm, self.told, saved=saved, clock=self.clock, health=health
        )
        self.manager.set_identity("t1", "d1")

    def seconds(self, number, **step):
        """That many seconds of traffic, four rounds and one tick in each."""
        for _ in range(number):
            self.clock.now += 1.0
            self.manager.observe(a_step(count=4, **step))
            self.manager.tick(self.clock.now)


def test_a_collapse_is_told_once_and_its_end_once():
    """Firing after the for-time, resolved once the window is good again, with the labels of the pair."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    [alert] = rig.told.alerts
    assert alert.state is State.FIRING
    assert alert.labels == {
        "alertname": "SpecdAcceptanceCollapse",
        "class": "chat",
        "proposer": "ngram",
        "severity": "warning",
        "target_revision": "t1",
        "draft_revision": "d1",
    }
    rig.seconds(10, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    assert rig.told.alerts[1].fingerprint == alert.fingerprint


def test_drafting_that_is_turned_off_neither_fires_nor_resolves():
    """While nothing is drafted the open alert stays; the next evidence decides."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    rig.seconds(200, accepted=0, drafted=0)
    assert rig.told.states() == [State.FIRING]
    rig.seconds(10, accepted=3)
    rig.seconds(200, accepted=0, drafted=0)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_the_metric_and_the_snapshot_follow_the_alert():
    """Both series exist from the start; a resolved alert is still shown, but not counted as open."""
    rig = Rig(a_rule())
    assert alerts_metric(rig.metrics) == {"pending": 0, "firing": 0}
    rig.seconds(1, accepted=0)
    assert alerts_metric(rig.metrics) == {"pending": 1, "firing": 0}
    rig.seconds(5, accepted=0)
    assert alerts_metric(rig.metrics) == {"pending": 0, "firing": 1}
    [shown] = rig.manager.snapshot()
    assert rig.manager.counts() == {"pending": 0, "firing": 1}
    assert (shown["name"], shown["state"], shown["endsAt"]) == ("SpecdAcceptanceCollapse", "firing", None)
    rig.seconds(10, accepted=3)
    assert alerts_metric(rig.metrics) == {"pending": 0, "firing": 0}
    assert [one["state"] for one in rig.manager.snapshot()] == ["resolved"]


def test_a_rule_that_disappears_resolves_its_alerts():
    """Only those that no remaining rule watches."""
    rig = Rig(a_rule(), a_rule(severity="critical"))
    rig.seconds(10, accepted=0)
    rig.manager.configure(AlertsSection(rules=(a_rule(severity="critical"),)))
    assert [(one.state, one.labels["severity"]) for one in rig.told.alerts[2:]] == [
        (State.RESOLVED, "warning")
    ]
    assert rig.told.alerts[2].annotations["resolution"] == "no rule watches this any more"


def test_a_rule_that_is_changed_keeps_its_alert():
    """A new floor decides from the next tick on, about the same alert."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    rig.manager.configure(AlertsSection(rules=(a_rule(below=0.6, traffic_class="chat"),)))
    rig.seconds(5, accepted=0)
    assert rig.told.states() == [State.FIRING]
    assert "floor of 0.6" in rig.manager.snapshot()[0]["annotations"]["summary"]


def test_a_longer_window_keeps_more_from_the_reload_on():
    """The horizon of the evidence follows the rules."""
    rig = Rig(a_rule())
    rig.manager.configure(AlertsSection(rules=(a_rule(window_seconds=100.0, min_examined=200),)))
    rig.seconds(60, accepted=0)
    assert rig.told.states() == [State.FIRING]


def test_another_pair_of_revisions_ends_the_alerts_of_the_old_one(caplog):
    """What was seen of the old pair says nothing of the new one, whose alerts have their own labels."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    rig.manager.set_identity("t1", "d1")
    assert rig.told.states() == [State.FIRING]
    rig.manager.set_identity("t2", "d1")
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    assert "alert resolved (another pair of revisions is served): Acceptance of class" in caplog.text
    rig.manager.tick(rig.clock.now)
    assert alerts_metric(rig.metrics) == {"pending": 0, "firing": 0}
    rig.seconds(10, accepted=0)
    assert rig.told.alerts[2].labels["target_revision"] == "t2"


def test_an_announced_update_is_given_time_and_then_told_as_not_recovered():
    """Nobody hears of a floor within the grace period; what still fires when it ends is told as what it is."""
    rig = Rig(a_rule(), grace=60.0)
    rig.seconds(10, accepted=3)
    rig.manager.set_identity("t2", "d1")
    rig.seconds(59, accepted=0)
    [shown] = rig.manager.snapshot()
    assert shown["state"] == "firing"
    assert shown["muted"] == "inhibited until 2025-11-29 15:27:50Z: target update at 2025-11-29 15:26:50Z"
    assert rig.told.alerts == []
    rig.seconds(1, accepted=0)
    [alert] = rig.told.alerts
    assert alert.annotations["summary"].startswith(
        "Not recovered since the target update at 2025-11-29 15:26:50Z: Acceptance of class chat"
    )
    assert alert.annotations["suspected_cause"] == "target update at 2025-11-29 15:26:50Z (t1 to t2)"


def test_an_update_from_which_acceptance_recovers_is_told_to_nobody():
    """Neither its beginning nor its end."""
    rig = Rig(a_rule(), grace=60.0)
    rig.manager.set_identity("t2", "d1")
    rig.seconds(20, accepted=0)
    rig.seconds(100, accepted=3)
    assert rig.told.alerts == []
    assert [one["state"] for one in rig.manager.snapshot()] == ["resolved"]


def test_a_collapse_long_after_an_update_is_told_at_once():
    """The grace period is the update's, not the alert's."""
    rig = Rig(a_rule(), grace=60.0)
    rig.manager.set_identity("t2", "d1")
    rig.seconds(100, accepted=3)
    rig.seconds(10, accepted=0)
    [alert] = rig.told.alerts
    assert alert.annotations["summary"].startswith("Acceptance of class chat")


def test_a_silence_mutes_what_it_matches_until_it_ends():
    """The state goes on; when the silence expires and the alert still fires, it is told, and later its end."""
    rig = Rig(a_rule())
    silence = new_silence(["class=chat"], 30.0, rig.clock.now)
    rig.manager.silence(silence)
    rig.seconds(29, accepted=0)
    assert rig.told.alerts == []
    assert rig.manager.snapshot()[0]["muted"] == f"silenced until 2025-11-29 15:27:10Z by {silence.id}"
    rig.seconds(1, accepted=0)
    rig.seconds(10, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_the_end_of_an_alert_is_told_in_spite_of_a_silence():
    """To whoever was told that it fires; an alert of which they never heard ends without a word."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    rig.manager.silence(new_silence(["SpecdAcceptanceCollapse"], 1000.0, rig.clock.now))
    rig.seconds(10, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    rig.seconds(20, accepted=0)
    rig.seconds(20, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_a_silence_that_is_deleted_mutes_nothing_more():
    """And one that is not there says so."""
    rig = Rig(a_rule())
    silence = new_silence(["class=~ch.*"], 1000.0, rig.clock.now)
    rig.manager.silence(silence)
    rig.seconds(10, accepted=0)
    rig.manager.unsilence(silence.id)
    rig.seconds(1, accepted=0)
    assert rig.told.states() == [State.FIRING]
    assert rig.manager.unsilence(silence.id) is None


def of_chat(name, source, *, traffic_class="chat", verdict=Verdict.BREACHED):
    labels = {"alertname": name, "class": traffic_class, "proposer": "ngram", "severity": "warning"}
    pair = {"target_revision": "t1", "draft_revision": "d1"}
    kind = {} if source == "floor" else {"kind": name}
    return Finding(source, {**labels, **pair, **kind}, verdict, {"summary": "s"})


def test_a_collapse_mutes_the_drift_that_it_is():
    """One cause, one page: of a class, proposer and pair the worst is told; when it is over, what is left of it is."""
    rig = Rig(a_rule())
    drift, elsewhere = "SpecdAcceptanceDrift", of_chat("SpecdAcceptanceDrift", "drift", traffic_class="code")
    collapse = of_chat("SpecdAcceptanceCollapse", "drift")
    rig.manager.judge([collapse, of_chat(drift, "drift"), elsewhere])
    assert [(one.name, one.labels["class"]) for one in rig.told.alerts] == [
        ("SpecdAcceptanceCollapse", "chat"),
        ("SpecdAcceptanceDrift", "code"),
    ]
    muted = {(one["name"], one["labels"]["class"]): one["muted"] for one in rig.manager.snapshot()}
    assert muted[drift, "chat"].startswith("inhibited by SpecdAcceptanceCollapse")
    rig.manager.judge([of_chat("SpecdAcceptanceCollapse", "drift", verdict=Verdict.FINE)])
    assert rig.told.states() == [State.FIRING] * 2 + [State.RESOLVED, State.FIRING]


def test_the_floor_of_an_operator_mutes_the_collapse_that_detectors_see():
    """Not so while nobody is told of it."""
    rig = Rig(a_rule(severity="warning"))
    rig.manager.silence(new_silence(["SpecdAcceptanceCollapse", "kind="], 20.0, rig.clock.now))
    rig.seconds(5, accepted=0)
    seen = of_chat("SpecdAcceptanceCollapse", "drift")
    rig.manager.judge([seen])
    assert [one.labels.get("kind") for one in rig.told.alerts] == [seen.labels["kind"]]
    rig.seconds(20, accepted=0)
    assert [one.labels.get("kind") for one in rig.told.alerts] == [seen.labels["kind"], None]
    (muted,) = [one["muted"] for one in rig.manager.snapshot() if "kind" in one["labels"]]
    assert muted.startswith("inhibited by SpecdAcceptanceCollapse")


def test_an_alert_that_still_fires_is_told_again_after_its_interval():
    """With the numbers of that moment, and no sooner."""
    rig = Rig(a_rule())
    rig.told.repeat_seconds = 60.0
    rig.seconds(4 + 120, accepted=0)
    assert rig.told.states() == [State.FIRING] * 3


def test_what_changes_is_written_with_what_is_told():
    """State, notice and who was told go into one transaction; a tick that changes nothing writes nothing."""
    rig = Rig(a_rule())
    rig.seconds(10, accepted=0)
    start, pending, firing = rig.told.changes
    assert [event.kind for event in start.events] == ["start"]
    (key,) = pending.alerts
    assert (pending.alerts[key].alert.state, dict(pending.told)) == (State.FIRING, {})
    assert list(firing.told) == [("ops", key)]
    rig.seconds(10, accepted=3)
    over = rig.told.changes[-1]
    assert (over.alerts, over.told) == ({key: None}, {("ops", key): None})


def test_an_alert_goes_on_after_a_restart():
    """It is not told again, and its end is; a rule that was taken out meanwhile ends it at once."""
    first = Rig(a_rule())
    first.seconds(10, accepted=0)
    (key,) = first.told.changes[-1].alerts
    alert = first.told.changes[-1].alerts[key]
    for rules, states in (((a_rule(),), []), ((), [State.RESOLVED])):
        again = Rig(*rules, saved=Saved([copy.deepcopy(alert)], {("ops", key): first.clock.now}, [], []))
        again.seconds(10, accepted=0)
        assert again.told.states() == states
    again = Rig(a_rule(), saved=Saved([alert], {("ops", key): first.clock.now}, [], []))
    again.seconds(10, accepted=3)
    assert again.told.states() == [State.RESOLVED]


def test_a_reload_that_cannot_be_used_changes_no_rule():
    """The receivers are refused first."""
    rig = Rig(a_rule())
    with pytest.raises(UserError, match="receiver bad"):
        rig.manager.configure(
            AlertsSection(rules=(), receivers=(ReceiverSection(name="bad", url="http://127.0.0.1"),))
        )
    rig.seconds(10, accepted=0)
    assert rig.told.states() == [State.FIRING]


def a_finding(verdict, **more):
    labels = {"alertname": "SpecdDraftMismatch", "severity": "warning"}
    return Finding("pair", labels, verdict, {"summary": "the tokenizers differ"}, **more)


def test_whoever_has_something_to_say_is_asked_each_second():
    """Findings of any source live as those of the rules do, and no reload of the rules ends them."""
    rig = Rig()
    rig.manager.watch(
        lambda now: [
            a_finding(Verdict.BREACHED if now < rig.clock.now + 1 else Verdict.FINE, for_seconds=2.0)
        ]
    )
    for _ in range(5):
        rig.clock.now += 1.0
        rig.manager.tick(rig.clock.now)
    rig.manager.configure(AlertsSection(rules=(a_rule(),)))
    rig.manager.set_identity("t2", "d2")
    assert [(one.name, one.state) for one in rig.told.alerts] == [("SpecdDraftMismatch", State.FIRING)]
    rig.manager.tick(rig.clock.now + 1)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_what_is_found_once_is_told_at_once():
    """A verdict that nobody repeats needs no tick."""
    rig = Rig()
    rig.manager.judge([a_finding(Verdict.BREACHED)])
    rig.manager.judge([a_finding(Verdict.FINE)])
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_an_alert_says_since_when_and_what_may_have_caused_it():
    """The last event before it began, or that there was none in the hour before; later ones change nothing."""
    rig = Rig()
    begun = rig.clock.now
    rig.manager.judge([a_finding(Verdict.BREACHED)])
    rig.manager.judge([a_finding(Verdict.FINE)])
    rig.manager.events.note("target_update", "t1 to t2", begun + 5)
    rig.manager.events.note("config_reload", "policy.k_max: 8 -> 4", begun + 9000)
    rig.clock.now = begun + 9010
    rig.manager.judge([a_finding(Verdict.BREACHED, since=begun + 40)])
    assert [one.annotations["suspected_cause"] for one in rig.told.alerts] == [
        "start of the daemon at 2025-11-29 15:26:40Z (target t1, draft d1)",
        "start of the daemon at 2025-11-29 15:26:40Z (target t1, draft d1)",
        "target update at 2025-11-29 15:26:45Z (t1 to t2)",
    ]
    assert rig.told.alerts[2].annotations["since"] == "2025-11-29T15:27:20.000Z"


def test_an_engine_that_dies_is_told_until_it_has_lived_for_ten_minutes():
    """One alert however often it dies, with the last reason; the restart is also a suspect for what follows."""
    rig = Rig()
    for _ in range(3):
        rig.manager.engine_died("signal 9")
        rig.seconds(100, accepted=3)
    [alert] = rig.told.alerts
    assert (alert.name, alert.state) == ("SpecdEngineRestarted", State.FIRING)
    assert alert.annotations["suspected_cause"].startswith("restart of the engine at")
    assert (
        "died 3 times within ten minutes, and was started again: signal 9"
        in (rig.manager.snapshot()[0]["annotations"]["summary"])
    )
    rig.seconds(600, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_a_vllm_of_others_that_goes_has_lost_no_request_of_ours():
    """Test that the alert does not tell of requests that were ended with an error."""
    rig = Rig()
    rig.manager.engine_died("exit code 0", foreign=True)
    rig.seconds(10, accepted=3)
    [alert] = rig.told.alerts
    assert alert.annotations["summary"].startswith("vLLM, or the process beside it, has gone once")
    assert "ended with an error" not in alert.annotations["description"]


def test_a_reload_that_was_refused_is_told_until_one_is_taken_over():
    """With the reason; meanwhile the files and the running config are two things."""
    rig = Rig()
    rig.manager.reloaded("policy.k_max: must be a whole number")
    rig.seconds(5, accepted=3)
    [alert] = rig.told.alerts
    assert (alert.name, alert.annotations["description"]) == (
        "SpecdConfigReloadFailed",
        "policy.k_max: must be a whole number",
    )
    rig.manager.reloaded(None)
    rig.seconds(1, accepted=3)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]


def test_memory_that_is_short_for_half_a_minute_is_told():
    """Of the KV pool and of the host, apart; a single preemption is nothing."""
    rig = Rig()
    rig.manager.observe(msgspec.structs.replace(a_step(3), preempted=1))
    rig.seconds(20, accepted=3)
    rig.seconds(70, accepted=3)
    assert rig.told.alerts == []
    for _ in range(40):
        rig.manager.observe(msgspec.structs.replace(a_step(3), preempted=2))
        rig.seconds(1, accepted=3)
    rig.memory = 0.01
    rig.seconds(40, accepted=3)
    assert [(one.labels["memory"], one.state) for one in rig.told.alerts] == [
        ("kv", State.FIRING),
        ("host", State.FIRING),
    ]
    assert rig.told.alerts[1].annotations["summary"] == "1.0% of the host's memory is available"
    rig.memory = 0.5
    rig.seconds(200, accepted=3)
    assert rig.told.states()[2:] == [State.RESOLVED, State.RESOLVED]


def test_alerts_about_the_daemon_itself_name_the_pair_that_is_served():
    """One about an engine elsewhere does not: that serves a pair of its own."""
    rig = Rig()
    rig.manager.reloaded("a fault")
    elsewhere = {"alertname": "SpecdObservedDown", "severity": "warning", "observed": "peer"}
    rig.manager.judge([Finding("observed", elsewhere, Verdict.BREACHED, {"summary": "down"})])
    rig.seconds(1, accepted=3)
    told = {alert.name: alert for alert in rig.told.alerts}
    own = told["SpecdConfigReloadFailed"]
    assert "target_revision" not in own.labels
    assert (own.annotations["target_revision"], own.annotations["draft_revision"]) == ("t1", "d1")
    assert "target_revision" not in told["SpecdObservedDown"].annotations


def test_a_host_that_does_not_tell_its_memory_is_not_alarmed_about(monkeypatch, tmp_path):
    """No file, or another one than Linux has."""
    monkeypatch.setattr("specd.alerts.health._MEMINFO", tmp_path / "none")
    assert host_memory() is None
    (tmp_path / "none").write_text("MemTotal: none\n")
    assert host_memory() is None
    (tmp_path / "none").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    assert host_memory() == 0.25


async def test_a_tick_that_fails_does_not_end_the_alarm(caplog):
    """The fault is logged with its traceback, and the task lives on."""
    rig = Rig(a_rule(for_seconds=0.0))
    times = iter([ZeroDivisionError("boom")])

    def clock():
        for error in times:
            raise error
        return 5.0

    rig.manager._clock = clock
    rig.manager.start()
    await until(lambda: "boom" in caplog.text)
    assert not rig.manager._task.done()
    await rig.manager.aclose()
    assert rig.manager._task.cancelled()


async def test_from_a_collapse_to_a_verified_webhook(tmp_path, caplog):
    """A receiver that first says 503 gets the same signed message again, and then its end."""
    caplog.set_level(logging.DEBUG)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    metrics = Metrics(version="1")
    async with alert_receiver() as receiver:
        receiver.answers.append(Answer(503, {"retry-after": "0"}))
        rule = a_rule(for_seconds=0.0, window_seconds=0.5)
        section = ReceiverSection(name="ops", url=receiver.url, secret_file=secret, group_wait_seconds=0)
        deliveries = Deliveries([section], metrics.alarm, DurableStore(tmp_path))
        manager = AlertManager(AlertsSection(rules=(rule,)), metrics.alarm, deliveries)
        manager.set_identity("t1", "d1")
        manager.observe(a_step(0, count=20))
        manager.start()
        deliveries.start()
        await until(lambda: len(receiver.received) == 2)
        await until(lambda: b'outcome="delivered",receiver="ops"} 1.0' in metrics.render())

        def is_over():
            manager.observe(a_step(3, count=20))
            return len(receiver.received) == 3

        await until(is_over)
        await manager.aclose()
        await deliveries.aclose(5)
    first, again, end = receiver.received
    assert first.headers["webhook-id"] == again.headers["webhook-id"] != end.headers["webhook-id"]
    assert first.verified(SECRET) == again.verified(SECRET)
    message = again.verified(SECRET)
    assert (message["version"], message["status"], message["receiver"]) == ("4", "firing", "ops")
    assert message["commonLabels"]["target_revision"] == "t1"
    assert "0 of 20" in message["commonAnnotations"]["description"]
    assert end.verified(SECRET)["status"] == "resolved"
    assert end.verified(SECRET)["alerts"][0]["fingerprint"] == message["alerts"][0]["fingerprint"]
    assert SECRET.removeprefix("whsec_") not in caplog.text
