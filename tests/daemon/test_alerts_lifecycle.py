"""The state machine that decides alerts."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from specd.alerts.finding import Finding, Verdict
from specd.alerts.lifecycle import Lifecycle, OpenAlert, State, fingerprint


def a_finding(verdict, *, traffic_class="chat", for_seconds=10.0, **more):
    labels = {
        "alertname": "SpecdAcceptanceCollapse",
        "class": traffic_class,
        "proposer": "ngram",
        "severity": "warning",
    }
    labels |= {"target_revision": "t1", "draft_revision": "d1"}
    return Finding("test", labels, verdict, {"summary": f"it is {verdict.name}"}, for_seconds, **more)


def run(lifecycle, verdicts, *, start=0.0, step=1.0, **more):
    """One evaluation per `step` seconds; the states that were announced, with their times."""
    times = [start + step * number for number in range(len(verdicts))]
    return [
        (alert.state, now)
        for verdict, now in zip(verdicts, times, strict=True)
        for alert in lifecycle.step([a_finding(verdict, **more)], now)
    ]


B, F, W, N = Verdict.BREACHED, Verdict.FINE, Verdict.BETWEEN, Verdict.NO_EVIDENCE

histories = st.lists(
    st.tuples(st.sampled_from(Verdict), st.sampled_from(["chat", "code"]), st.floats(0.0, 8.0)), max_size=60
)


def play(history):
    """Feed a history of (verdict, class, pause before it); yields (now, verdict, class, changes, open)."""
    lifecycle, now = Lifecycle(), 0.0
    for verdict, traffic_class, pause in history:
        now += pause
        changes = lifecycle.step([a_finding(verdict, traffic_class=traffic_class)], now)
        yield now, verdict, traffic_class, changes, lifecycle.open()


@given(histories)
def test_there_is_at_most_one_open_alert_per_fingerprint(history):
    """Whatever happens, open alerts have different fingerprints, and those are of their labels."""
    for _, _, _, _, open_alerts in play(history):
        prints = [alert.fingerprint for alert in open_alerts]
        assert len(set(prints)) == len(prints)
        assert prints == [fingerprint(alert.labels) for alert in open_alerts]


@given(histories)
def test_firing_and_resolved_take_turns(history):
    """Of each fingerprint, the told states are firing, resolved, firing, … and begin with firing."""
    told = {}
    for _, _, _, changes, _ in play(history):
        for alert in changes:
            if alert.state is not State.PENDING:
                told.setdefault(alert.fingerprint, []).append(alert.state)
    for states in told.values():
        assert states == [State.FIRING, State.RESOLVED] * (len(states) // 2) + [State.FIRING] * (
            len(states) % 2
        )


@given(histories)
def test_nothing_fires_before_it_was_breached_for_long_enough(history):
    """When an alert fires, the unbroken breaches since it began cover `for_seconds`."""
    covered, last = {}, {}
    for now, verdict, traffic_class, changes, _ in play(history):
        if verdict is B:
            previous = last.get(traffic_class)
            covered[traffic_class] = covered.get(traffic_class, 0.0) + (
                0 if previous is None else now - previous
            )
        if verdict in {F, W}:
            covered[traffic_class] = 0.0
        last[traffic_class] = now if verdict is B else None
        for alert in changes:
            assert (alert.state is State.FIRING) <= (covered[traffic_class] >= 10.0 - 1e-9)


@given(histories, st.floats(0.0, 1e6))
def test_no_evidence_changes_nothing(history, pause):
    """However long it lasts, no evidence announces nothing and leaves every open alert as it is."""
    lifecycle, now = Lifecycle(), 0.0
    for verdict, traffic_class, gap in history:
        now += gap
        lifecycle.step([a_finding(verdict, traffic_class=traffic_class)], now)
    before = lifecycle.open()
    assert lifecycle.step([a_finding(N), a_finding(N, traffic_class="code")], now + pause) == []
    assert lifecycle.open() == before


def test_the_life_of_an_alert():
    """Pending at the first breach, firing after `for_seconds`, resolved at the first good word."""
    told = run(Lifecycle(), [F, *[B] * 15, F, F])
    assert told == [(State.PENDING, 1.0), (State.FIRING, 11.0), (State.RESOLVED, 16.0)]


def test_a_pending_alert_that_recovers_ends_without_a_word():
    """Nobody was told of it, so nobody is told that it is over."""
    lifecycle = Lifecycle()
    assert run(lifecycle, [B, B, F, B, F]) == [(State.PENDING, 0.0), (State.PENDING, 3.0)]
    assert lifecycle.open() == []


def test_time_without_evidence_does_not_count_towards_for_seconds():
    """Six seconds of breach, a long silence, then four more: fires only after the four."""
    told = run(Lifecycle(), [*[B] * 7, *[N] * 100, *[B] * 6])
    assert told == [(State.PENDING, 0.0), (State.FIRING, 111.0)]


def test_a_clock_that_jumps_back_takes_nothing_away():
    """Five seconds of breach, an hour back, and five more are ten."""
    lifecycle = Lifecycle()
    assert run(lifecycle, [B] * 6) == [(State.PENDING, 0.0)]
    assert run(lifecycle, [B] * 6, start=-3600.0) == [(State.FIRING, -3595.0)]


def test_drafting_turned_off_neither_fires_nor_resolves():
    """A firing alert outlives the silence and is resolved by evidence alone."""
    told = run(Lifecycle(), [*[B] * 11, *[N] * 500, F])
    assert told == [(State.PENDING, 0.0), (State.FIRING, 10.0), (State.RESOLVED, 511.0)]


def test_without_a_for_time_the_first_breach_fires():
    """`for_seconds = 0` skips pending."""
    [alert] = Lifecycle().step([a_finding(B, for_seconds=0.0)], 5.0)
    assert (alert.state, alert.starts_at, alert.ends_at) == (State.FIRING, 5.0, None)


def test_an_alert_resolves_with_its_times_and_the_numbers_of_today():
    """Start is when it fired, end is now, and the text says how good it is again."""
    lifecycle = Lifecycle()
    lifecycle.step([a_finding(B, for_seconds=0.0)], 5.0)
    [alert] = lifecycle.step([a_finding(F)], 9.0)
    assert (alert.state, alert.starts_at, alert.ends_at) == (State.RESOLVED, 5.0, 9.0)
    assert alert.annotations["summary"] == "it is FINE"
    assert alert.annotations["resolution"]


def test_alerts_can_be_ended_from_outside():
    """A firing one is announced as resolved with the reason, a pending one just goes; others stay."""
    lifecycle = Lifecycle()
    lifecycle.step([a_finding(B, for_seconds=0.0), a_finding(B, traffic_class="code")], 1.0)
    lifecycle.step([a_finding(B, traffic_class="math", for_seconds=0.0)], 1.0)
    gone = lifecycle.end(lambda alert: None if alert.labels["class"] == "math" else "the rule is gone", 2.0)
    assert [(one.labels["class"], one.state, one.annotations["resolution"]) for one in gone] == [
        ("chat", State.RESOLVED, "the rule is gone")
    ]
    assert [one.labels["class"] for one in lifecycle.open()] == ["math"]


def test_between_begins_no_alert_and_ends_none_that_fires():
    """Hysteresis: a pending alert is forgotten, a firing one stays until it is fine."""
    assert run(Lifecycle(), [W, *[B] * 9, W, *[B] * 11, *[W] * 50, F]) == [
        (State.PENDING, 1.0),
        (State.PENDING, 11.0),
        (State.FIRING, 21.0),
        (State.RESOLVED, 72.0),
    ]


def test_an_alert_is_over_only_once_it_was_fine_for_long_enough():
    """Any breach or doubt begins the span anew; silence neither counts nor takes away."""
    history = [*[B] * 11, *[F] * 4, B, *[F] * 4, W, *[F] * 3, *[N] * 20, *[F] * 9]
    told = run(Lifecycle(), history, keep_seconds=5.0)
    assert told == [(State.PENDING, 0.0), (State.FIRING, 10.0), (State.RESOLVED, 47.0)]


def test_an_alert_keeps_what_was_known_when_it_began():
    """The context is asked for once, at the first breach, and stands beside the texts of each moment."""
    asked = []

    def context(finding, now):
        asked.append((finding.verdict, now))
        return {"suspected_cause": f"something at {now:g}"}

    lifecycle = Lifecycle(context)
    told = [alert for now in range(20) for alert in lifecycle.step([a_finding(B if now < 15 else F)], now)]
    assert asked == [(B, 0)]
    assert {alert.annotations["suspected_cause"] for alert in told} == {"something at 0"}
    assert [alert.annotations["summary"] for alert in told] == [
        "it is BREACHED",
        "it is BREACHED",
        "it is FINE",
    ]


def test_an_alert_that_flaps_becomes_one_long_alert():
    """Each time that it fires again within an hour it must be fine for twice as long; later it is as new."""
    lifecycle = Lifecycle()
    flapping = ([B] * 2 + [F] * 8) * 12
    told = run(lifecycle, flapping, for_seconds=0.0, keep_seconds=2.0)
    ends = [now for state, now in told if state is State.RESOLVED]
    assert ends == [4.0, 16.0]
    assert [state for state, _ in told][-1] is State.FIRING
    calm = run(lifecycle, [F] * 100, start=200.0, for_seconds=0.0, keep_seconds=2.0)
    assert calm == [(State.RESOLVED, 200.0)]
    again = run(lifecycle, [B, *[F] * 8], start=10_000.0, for_seconds=0.0, keep_seconds=2.0)
    assert again == [(State.FIRING, 10_000.0), (State.RESOLVED, 10_003.0)]


def test_what_is_said_once_is_never_damped():
    """A test of the receivers, a canary: without a time to be fine for, the first fine word ends it, however often."""
    told = run(Lifecycle(), [B, F] * 20, for_seconds=0.0)
    assert [state for state, _ in told] == [State.FIRING, State.RESOLVED] * 20


def test_a_machine_that_slept_has_seen_nothing_meanwhile():
    """Two looks an hour apart are not an hour of breach, nor an hour of being fine: a look is good for ten seconds."""
    lifecycle = Lifecycle()
    assert run(lifecycle, [B, B], step=3600.0, for_seconds=11.0) == [(State.PENDING, 0.0)]
    assert run(lifecycle, [B], start=3601.0, for_seconds=11.0) == [(State.FIRING, 3601.0)]
    assert run(lifecycle, [F, F], start=3602.0, step=3600.0, keep_seconds=11.0) == []
    assert run(lifecycle, [F], start=7203.0, keep_seconds=11.0) == [(State.RESOLVED, 7203.0)]


@given(histories, st.integers(0, 60))
def test_a_restart_changes_nothing_but_that_nobody_looked_meanwhile(history, at):
    """Written down and read again in the middle, the same is told as after a gap in the evidence."""
    told = []
    for restarted in (True, False):
        lifecycle, now, found = Lifecycle(), 0.0, []
        for number, (verdict, traffic_class, pause) in enumerate(history):
            now += pause
            if number == at and restarted:
                lifecycle = restored(lifecycle)
            elif number == at:
                lifecycle.step([a_finding(N), a_finding(N, traffic_class="code")], now)
            changes = lifecycle.step([a_finding(verdict, traffic_class=traffic_class)], now)
            found += [(alert, now) for alert in changes]
        told.append((found, lifecycle.open()))
    assert told[0] == told[1]


def restored(lifecycle):
    """What a daemon would go on with that reads what the last one wrote."""
    after = Lifecycle()
    written = msgspec.json.encode(lifecycle.all())
    after.restore(msgspec.json.decode(written, type=list[OpenAlert]))
    return after


def test_what_has_changed_is_told_once():
    """For whoever writes it down: those that began or changed state, and None for those that are over."""
    lifecycle = Lifecycle()
    lifecycle.step([a_finding(B), a_finding(B, traffic_class="code", for_seconds=0.0)], 1.0)
    assert [one.alert.state for one in lifecycle.changed().values()] == [State.PENDING, State.FIRING]
    lifecycle.step([a_finding(B), a_finding(B, traffic_class="code", for_seconds=0.0)], 2.0)
    assert lifecycle.changed() == {}
    lifecycle.step([a_finding(F), a_finding(F, traffic_class="code")], 3.0)
    assert list(lifecycle.changed().values()) == [None, None]
