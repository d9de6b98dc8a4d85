"""Requests as they end: what they showed, the reports of it, and what the drift detectors make of it."""

import errno
import json
import os
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from engine.api import Foreign, Output, Request, Round, SamplingParams
from engine.tally import Tally
from policies.drift.losing import STEPS, Losing
from specd.alerts.finding import Finding, Verdict
from specd.alerts.lifecycle import State
from specd.config.drift import DriftSection
from specd.config.schema import Config
from specd.config.telemetry import TelemetrySection
from specd.restarts import Death
from specd.telemetry.drift import Drift
from specd.telemetry.finished import EarlierRequests, Finished, Requests
from specd.telemetry.goodput import Goodput
from specd.telemetry.prometheus import Metrics
from specd.telemetry.reports import ReportFile, Reports, line_of
from specd.telemetry.requests import RequestWatch
from tests.daemon.test_alerts_manager import Rig, a_rule
from tests.daemon.test_telemetry_metrics import a_round, a_step
from tests.messages import a_ready

EASY = DriftSection(requests_per_false_alarm=1e4)


class Sink:
    def __init__(self) -> None:
        self.all: list[Finished] = []

    def finished(self, request: Finished) -> None:
        self.all.append(request)


def submitted(requests: Requests, name: str = "r", **values) -> None:
    sampling = SamplingParams(max_tokens=9, temperature=values.pop("temperature", 0.0))
    requests.submitted(Request(id=name, prompt=[1], sampling=sampling, **values), 0.0)


def ended(name: str = "r", index: int = 0, tokens: int = 2) -> Output:
    return Output(id=name, index=index, tokens=[5] * tokens, finish="stop")


def by_chance(chances: tuple[float, ...], accepted: int) -> Round:
    return Round("r", "chat", "eagle", 3, 3, len(chances), accepted, "acceptance", "why", chances=chances)


def one_request(rounds: list[Round], **values) -> Finished:
    sink = Sink()
    requests = Requests(sink, clock=lambda: 1764430000.0)
    requests.set_identity("t1", "d1")
    submitted(requests, **values)
    requests.step(a_step(rounds))
    requests.step(a_step(outputs=[ended(index=index) for index in range(values.get("n", 1))]))
    (found,) = sink.all
    return found


def test_a_report_has_the_names_that_others_rely_on() -> None:
    rounds = [
        a_round(examined=3, accepted=2),
        a_round(examined=1, accepted=0),
        a_round(examined=2, accepted=2),
    ]
    request = one_request(rounds, traffic_class="chat", tenant="a", temperature=0.5)
    assert line_of(request) == {
        "t": 1764430000.0,
        "request": "r",
        "class": "chat",
        "tenant": "a",
        "temperature": 0.5,
        "target_revision": "t1",
        "draft_revision": "d1",
        "proposer": "ngram",
        "examined": (3, 2, 1),
        "accepted": (2, 2, 0),
        "tokens": 2,
    }


def test_who_else_drafted_is_told_beside_and_forced_tokens_are_nobodys() -> None:
    rounds = [
        a_round(proposer="eagle", examined=3, accepted=3),
        a_round(proposer="ngram", examined=1, accepted=0),
        a_round(proposer="grammar", examined=4, accepted=4),
    ]
    line = line_of(one_request(rounds))
    assert (line["proposer"], line["examined"], line["accepted"]) == ("eagle", (1, 1, 1), (1, 1, 1))
    assert line["also"] == [{"proposer": "ngram", "examined": (1,), "accepted": (0,)}]


def test_the_texts_of_a_request_are_one_piece_of_evidence() -> None:
    request = one_request([a_round("r"), a_round("r#1"), a_round("other#1")], n=2)
    assert [shown.examined for shown in request.shown()] == [(2, 2, 2)]
    assert request.tokens == 4


def test_chances_are_summed_where_all_of_them_are_known() -> None:
    known = [by_chance((0.5, 0.25), 1), by_chance((1.0,), 0)]
    (shown,) = one_request(known).shown()
    assert (shown.examined, shown.accepted, shown.expected) == ((2, 1), (1, 0), (1.5, 0.25))
    (shown,) = one_request([*known, a_round(proposer="eagle")]).shown()
    assert shown.expected == ()


def test_what_was_in_a_dead_engine_is_forgotten() -> None:
    sink = Sink()
    requests = Requests(sink)
    submitted(requests)
    requests.step(a_step([a_round()]))
    requests.died(Death("crash", "it crashed", None))
    requests.step(a_step(outputs=[ended()]))
    assert sink.all == []


def test_requests_that_came_past_the_daemon_are_known_at_their_end() -> None:
    """Test that they count as others do, and only where the engine says that there are such requests."""
    said = Output(
        id="r",
        tokens=[],
        finish="stop",
        report=Tally().report(4, 9),
        foreign=Foreign(traffic_class="code", tenant="b", temperature=0.5),
    )
    for foreign, examined in ((True, [(2, 2, 2)]), (False, [])):
        sink = Sink()
        requests = Requests(sink)
        requests.set_identity("t1", "d1")
        requests.ready(a_ready(foreign=foreign))
        requests.step(a_step([a_round("r"), a_round("r")]))
        requests.step(a_step(outputs=[said]))
        (request,) = sink.all
        assert (request.traffic_class, request.temperature, request.tokens) == ("code", 0.5, 9)
        assert [shown.examined for shown in request.shown()] == examined


def test_an_update_leaves_requests_to_the_pair_that_they_began_with() -> None:
    """Those that the engine before it still serves; its death takes no other's evidence along."""
    sink = Sink()
    requests = Requests(sink)
    earlier = EarlierRequests(requests)
    requests.set_identity("t1", "d1")
    submitted(requests, "a")
    submitted(requests, "b")
    requests.set_identity("t2", "d1")
    submitted(requests, "c")
    earlier.step(a_step([a_round("a")], [ended("a")]))
    earlier.died(Death("crash", "it crashed", None))
    requests.step(a_step([a_round("c")], [ended("c"), ended("b")]))
    assert [(each.request, each.target_revision) for each in sink.all] == [("a", "t1"), ("c", "t2")]


def test_what_was_left_in_an_engine_that_was_ended_is_let_go() -> None:
    """Two updates later, when its engine has gone for certain; what the last one still serves goes on."""
    requests = Requests(Sink())
    for number in range(4):
        requests.set_identity(f"t{number}", "d")
        submitted(requests, f"r{number}")
    assert set(requests._open) == {"r2", "r3"}


def test_full_files_are_moved_away_and_the_oldest_goes(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "new" / "reports.jsonl", most_bytes=30, keep=2)
    for number in range(10):
        file.append([f"line {number:04}", f"more {number:04}"])
    found = {path.name: path.read_text().split("\n")[0] for path in (tmp_path / "new").iterdir()}
    assert found == {
        "reports.jsonl": "line 0009",
        "reports.jsonl.1": "line 0008",
        "reports.jsonl.2": "line 0007",
    }
    assert (tmp_path / "new" / "reports.jsonl").stat().st_mode & 0o777 == 0o600


async def test_reports_are_written_as_lines(tmp_path: Path) -> None:
    reports = Reports(TelemetrySection(reports_file=tmp_path / "reports.jsonl"))
    reports.finished(one_request([a_round()]))
    reports.updated("t2", "d1", 1764430001.0)
    await reports.aclose()
    first, second = map(json.loads, (tmp_path / "reports.jsonl").read_text().splitlines())
    assert first["request"] == "r"
    assert second == {
        "t": 1764430001.0, "event": "target_update", "target_revision": "t2", "draft_revision": "d1",
    }  # fmt: skip
    assert counted(reports) == {"written": 2, "lost": 0}


async def test_a_full_disk_is_told_once_and_loses_no_more_than_it_must(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a device that is always full, and then on one that is not."""
    full, well = TelemetrySection(reports_file=Path("/dev/full")), tmp_path / "reports.jsonl"
    reports = Reports(full)
    for _ in range(3):
        reports.finished(one_request([a_round()]))
        await reports.flush()
    reports.configure(TelemetrySection(reports_file=well))
    reports.finished(one_request([a_round()]))
    await reports.flush()
    assert counted(reports) == {"written": 1, "lost": 3}
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert os.strerror(errno.ENOSPC) in caplog.text


async def test_reports_that_nobody_asked_for_cost_nothing() -> None:
    reports = Reports(TelemetrySection())
    reports.finished(one_request([a_round()]))
    await reports.aclose()
    assert counted(reports) == {"written": 0, "lost": 0}


def counted(reports: Reports) -> dict[str, float]:
    (family,) = reports.collect()
    return {sample.labels["outcome"]: sample.value for sample in family.samples}


def feed(drift: Drift, mean: float, count: int, seed: int = 0) -> None:
    """Requests of 60 rounds each, whose acceptance is their own."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        accepted = int(rng.binomial(60, rng.beta(mean * 25, (1 - mean) * 25)))
        good, bad = a_round(examined=1, accepted=1), a_round(examined=1, accepted=0)
        rounds = [good] * accepted + [bad] * (60 - accepted)
        drift.finished(one_request(rounds, traffic_class="chat"))


def measured(drift: Drift, name: str) -> float:
    (value,) = [s.value for family in drift.collect() for s in family.samples if s.name == name]
    return value


@pytest.fixture
def drift(tmp_path: Path) -> Drift:
    found = Drift(EASY, tmp_path, clock=lambda: 1764430000.0)
    found.set_identity("t1", "d1")
    return found


def test_a_fall_is_a_finding_with_all_that_one_wants_to_know(drift: Drift) -> None:
    feed(drift, 0.75, 200)
    assert {finding.verdict for finding in drift.findings(1764430000.0)} == {Verdict.FINE}
    feed(drift, 0.5, 40, seed=1)
    (found,) = [f for f in drift.findings(1764430000.0) if f.verdict is Verdict.BREACHED]
    assert found.labels == {
        "alertname": "SpecdAcceptanceDrift",
        "kind": "step",
        "class": "chat",
        "temperature": "greedy",
        "proposer": "ngram",
        "severity": "warning",
        "target_revision": "t1",
        "draft_revision": "d1",
    }
    assert found.since == 1764430000.0
    assert found.annotations["summary"].startswith(
        "Acceptance of class chat (greedy temperature), drafted by ngram, fell at once from 0.7"
    )
    assert "95 % interval -0." in found.annotations["description"]
    assert "target t1, draft d1" in found.annotations["description"]
    (stratum,) = drift.snapshot()
    assert (stratum["traffic_class"], stratum["wrong"]) == ("chat", ["step"])
    assert stratum["baseline"] == pytest.approx(0.75, abs=0.03)
    assert stratum["now"] == pytest.approx(0.5, abs=0.06)


def breached(drift: Drift, name: str) -> Finding:
    (found,) = [
        f
        for f in drift.findings(1764430000.0)
        if f.verdict is Verdict.BREACHED and f.labels["alertname"] == name
    ]
    return found


def test_a_collapse_and_a_loop_are_told_with_before_and_interval(drift: Drift, tmp_path: Path) -> None:
    """Of a collapse without a baseline, the interval is that of the level itself."""
    feed(drift, 0.7, 200)
    feed(drift, 0.03, 60, seed=1)
    texts = breached(drift, "SpecdAcceptanceCollapse").annotations
    assert "has collapsed: it is 0.0" in texts["summary"]
    assert " after 0.7" in texts["summary"]
    assert " since about 2025-" in texts["summary"]
    assert "95 % interval -0." in texts["description"]
    assert "5 requests were accepted at 0." in texts["description"]
    always = Drift(EASY, tmp_path / "always", clock=lambda: 1764430000.0)
    always.set_identity("t1", "d1")
    feed(always, 0.03, 150)
    description = breached(always, "SpecdAcceptanceCollapse").annotations["description"]
    assert "were accepted, 95 % interval " in description
    assert "The 150 requests of the baseline were accepted at 0.0" in description
    loops = Drift(EASY, tmp_path / "loops", clock=lambda: 1764430000.0)
    loops.set_identity("t1", "d1")
    feed(loops, 0.7, 300)
    feed(loops, 0.99, 60, seed=1)
    assert "95 % interval +0.2" in breached(loops, "SpecdAcceptanceLoop").annotations["description"]


async def test_a_floor_is_told_with_its_interval_and_what_was_before(tmp_path: Path) -> None:
    """Before comes from what the detectors have learned, if they have."""
    rig = Rig(a_rule())
    requests = watching(rig, Goodput(rig.clock), tmp_path)
    rig.seconds(5, accepted=0)
    (unknown,) = rig.told.alerts
    assert "0 of 16 examined drafts kept their first token" in unknown.annotations["description"]
    assert "an acceptance of 0.00 to 0.19 (95 %" in unknown.annotations["description"]
    assert unknown.annotations["description"].endswith("before has not been learned yet.")
    feed(requests._drift, 0.7, 200)
    rig.seconds(1, accepted=0)
    (shown,) = [one for one in rig.manager.snapshot() if one["name"] == "SpecdAcceptanceCollapse"]
    assert "Before, it was 0.7" in shown["annotations"]["description"]
    assert shown["annotations"]["description"].endswith(", over 200 requests.")


async def test_what_is_accepted_by_hand_ends_its_alert(tmp_path: Path) -> None:
    """And no other; it is learned anew, so that the same level is told of no more."""
    rig = Rig()
    requests = RequestWatch(
        Config(drift=EASY), tmp_path, rig.manager, rig.metrics, losing=Losing(), clock=rig.clock
    )
    requests.set_identity("t1", "d1")
    feed(requests._drift, 0.75, 200)
    feed(requests._drift, 0.5, 40, seed=1)
    rig.seconds(1, accepted=4)
    assert rig.told.states() == [State.FIRING]
    assert await requests.accept(lambda stratum: stratum.traffic_class == "code") == []
    (accepted,) = await requests.accept(lambda stratum: stratum.proposer == "ngram")
    assert accepted.traffic_class == "chat"
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    assert rig.told.alerts[1].annotations["resolution"] == "what acceptance is now was accepted by hand"
    feed(requests._drift, 0.5, 150, seed=2)
    rig.seconds(5, accepted=4)
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    await requests.aclose()
    assert (tmp_path / "drift.state").exists()


def lose(goodput: Goodput, gain: float, rounds: int, reason: str = "static") -> None:
    """Steps in turn with drafts and without; gain: tokens of those with, to those without."""
    drafted = Round("r", "chat", "ngram", 4, 4, 1, 0, reason, "why")
    plain = Round("r", "chat", "none", 0, 0, 0, 0, "plain", "why")
    for _ in range(rounds * STEPS):
        goodput.add(a_step([drafted], committed=int(100 * gain)))
        goodput.add(a_step([plain], committed=100))


def watching(rig: Rig, goodput: Goodput, directory: Path, **config: object) -> RequestWatch:
    found = RequestWatch(
        Config(drift=EASY, **config),
        directory,
        rig.manager,
        Metrics(version="1"),
        losing=goodput.losing,
        clock=rig.clock,
    )
    found.set_identity("t1", "d1")
    return found


async def test_speculation_that_loses_is_told_until_the_policy_is_another_one(tmp_path: Path) -> None:
    """Test that the alert has the load, the pair and both rates; that a restart ends it neither by itself nor by the
    first steps that it sees; that time without steps does not end it; and that another policy does."""
    rig = Rig()
    goodput = Goodput(rig.clock)
    requests = watching(rig, goodput, tmp_path)
    lose(goodput, 0.75, 30)
    rig.seconds(1, accepted=4)
    (alert,) = rig.told.alerts
    assert (alert.name, alert.labels["running"], alert.labels["draft_revision"]) == (
        "SpecdSpeculationLosing",
        "1",
        "d1",
    )
    assert alert.annotations["summary"].startswith("Speculation loses with 1 running: 20")
    await requests.aclose()
    rig.manager._sources.remove(requests._losses)
    goodput = Goodput(rig.clock)
    requests = watching(rig, goodput, tmp_path)
    lose(goodput, 1.5, 1)
    rig.seconds(1, accepted=4)
    rig.clock.now += 3600
    rig.seconds(1, accepted=4)
    assert rig.told.states() == [State.FIRING]
    requests.configure(Config(drift=EASY, policy={"kind": "off"}))
    assert rig.told.states() == [State.FIRING, State.RESOLVED]
    assert rig.told.alerts[1].annotations["resolution"] == "the policy is another one now"
    assert goodput.losing.all() == []


def test_probes_are_not_expected_to_be_worth_it() -> None:
    """Test that steps whose only drafts are probes count neither as drafting nor as plain."""
    goodput = Goodput(lambda: 0.0)
    lose(goodput, 0.5, 40, reason="probe")
    (arms,) = goodput.losing.all()
    assert (arms.rounds, arms.losing) == (0, False)
    assert goodput.snapshot()[0]["drafting"] is None


def test_metrics_are_nan_until_something_is_known(drift: Drift) -> None:
    feed(drift, 0.75, 50)
    assert isnan(measured(drift, "specd_acceptance_baseline"))
    assert isnan(measured(drift, "specd_drift_score"))
    feed(drift, 0.75, 100, seed=1)
    assert measured(drift, "specd_acceptance_baseline") == pytest.approx(0.75, abs=0.03)
    assert 0 <= measured(drift, "specd_drift_score") < 1


async def test_what_was_learned_outlives_the_daemon(drift: Drift, tmp_path: Path) -> None:
    feed(drift, 0.75, 200)
    await drift.aclose()
    again = Drift(EASY, tmp_path, clock=lambda: 1764430000.0)
    again.set_identity("t1", "d1")
    assert again.snapshot() == drift.snapshot()


async def test_a_state_that_cannot_be_used_is_told_of_and_learned_anew(
    drift: Drift, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed(drift, 0.75, 20)
    await drift.aclose()
    state = tmp_path / "drift.state"
    state.write_bytes(state.read_bytes()[:-20])
    assert Drift(EASY, tmp_path).snapshot() == []
    assert "baselines are learned anew" in caplog.text


async def test_a_full_disk_does_not_stop_the_detectors(
    drift: Drift, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "drift.new").symlink_to("/dev/full")
    feed(drift, 0.75, 150)
    await drift.save()
    await drift.save()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    feed(drift, 0.5, 40, seed=1)
    assert any(finding.verdict is Verdict.BREACHED for finding in drift.findings(1764430000.0))
    (tmp_path / "drift.new").unlink()
    await drift.aclose()
    assert (tmp_path / "drift.state").exists()
