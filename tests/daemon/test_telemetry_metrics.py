"""What /metrics says, and what counting costs a step."""

import math
import shutil
import subprocess
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api import Idle, KVUsage, Output, PhaseSeconds, Round, StepReport
from policies.base import LoadState, Reason
from policies.cost_error import CostError
from specd.observers import Ledger
from specd.telemetry.prometheus import Metrics
from specd.telemetry.tally import Acceptance, Rate


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def a_round(request="r", *, traffic_class="chat", proposer="ngram", k=4, drafted=4, examined=3, accepted=2):
    return Round(request, traffic_class, proposer, k, drafted, examined, accepted, "acceptance", "why")


def a_step(
    rounds=(),
    outputs=(),
    *,
    committed=0,
    running=1,
    waiting=0,
    load_state=LoadState.FULL,
    preempted=0,
    cost_errors=(),
):
    return StepReport(
        step=1,
        phases=PhaseSeconds(schedule=0.001, draft=0.002, verify=0.03, commit=0.004),
        rows=8,
        prefill_rows=0,
        running=running,
        waiting=waiting,
        committed=committed,
        kv=KVUsage(free=85, used=10, cached=5),
        load_state=load_state,
        rounds=list(rounds),
        outputs=list(outputs),
        preempted=preempted,
        cost_errors=cost_errors,
    )


def families(metrics):
    return list(text_string_to_metric_families(metrics.render().decode()))


def value(metrics, name, **labels):
    """The one sample of this name and these labels, None when there is none."""
    found = [
        sample.value
        for family in families(metrics)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def a_full_set():
    """Metrics in which every family has a sample."""
    metrics = Metrics(version="1.2.3", restart_reasons=("crash", "hang"))
    metrics.set_target("t1", "d1", "none", ["ngram"])
    metrics.config_reloaded(ok=True, unix_time=1764430000.0)
    metrics.alarm.set_alerts({("SpecdAcceptanceCollapse", "firing"): 1})
    metrics.alarm.declare_receivers(["ops"])
    metrics.request_started("r", 10.0)
    for now in (11.0, 11.5):
        metrics.observe_step(a_step([a_round()], [Output(id="r", tokens=[1, 2])], committed=2), now)
    metrics.observe_step(a_step(running=0, cost_errors=(CostError("all", 0.03, 0.1, 9),)), 11.5)
    return metrics


CONTRACT = {
    "specd_spec_decode_num_drafts": "counter",
    "specd_spec_decode_num_draft_tokens": "counter",
    "specd_spec_decode_num_accepted_tokens": "counter",
    "specd_spec_decode_num_accepted_tokens_per_pos": "counter",
    "specd_spec_decode_num_examined_tokens_per_pos": "counter",
    "specd_draft_length": "histogram",
    "specd_policy_decisions": "counter",
    "specd_load_state": "gauge",
    "specd_step_cost_error": "gauge",
    "specd_running_requests": "gauge",
    "specd_waiting_requests": "gauge",
    "specd_step_seconds": "histogram",
    "specd_goodput_tokens_per_second": "gauge",
    "specd_kv_blocks": "gauge",
    "specd_preemptions": "counter",
    "specd_time_to_first_token_seconds": "histogram",
    "specd_inter_token_seconds": "histogram",
    "specd_acceptance": "gauge",
    "specd_proposer_acceptance": "gauge",
    "specd_target_info": "gauge",
    "specd_alerts": "gauge",
    "specd_webhook_deliveries": "counter",
    "specd_webhook_outbox": "gauge",
    "specd_webhook_outbox_durable": "gauge",
    "specd_receiver_outbox": "gauge",
    "specd_receiver_failing": "gauge",
    "specd_receiver_last_success_timestamp_seconds": "gauge",
    "specd_silences": "gauge",
    "specd_config_last_reload_successful": "gauge",
    "specd_config_pending_restart": "gauge",
    "specd_config_last_reload_success_timestamp_seconds": "gauge",
    "specd_engine_failed_steps": "counter",
    "specd_engine_restarts": "counter",
    "specd_build_info": "gauge",
}


def test_the_names_and_types_are_those_that_dashboards_rely_on():
    """Exactly the promised families, each with samples, once everything has been seen."""
    seen = {family.name: family.type for family in families(a_full_set()) if family.samples}
    assert seen == CONTRACT


def test_the_text_keeps_prometheus_naming_rules():
    """Help everywhere, counters end in _total, no _created series, no colons, base units."""
    for family in families(a_full_set()):
        assert family.documentation.endswith(".")
        assert ":" not in family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_milliseconds"))
        for sample in family.samples:
            assert not sample.name.endswith("_created")
            assert (family.type == "counter") == sample.name.endswith("_total")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_text():
    """Prometheus' own linter has nothing to say."""
    text = a_full_set().render()
    linter = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (linter.returncode, linter.stdout, linter.stderr) == (0, b"", b"")


def test_positions_after_the_first_rejection_are_not_examined():
    """Two accepted of three examined of four drafted: position 3 was examined, position 4 was not."""
    metrics = Metrics(version="1")
    metrics.observe_step(a_step([a_round(), a_round(examined=1, accepted=0)]), 0.0)
    prefix = "specd_spec_decode_num"
    examined = [
        value(metrics, f"{prefix}_examined_tokens_per_pos_total", proposer="ngram", position=str(position))
        for position in (1, 2, 3, 4)
    ]
    accepted = [
        value(metrics, f"{prefix}_accepted_tokens_per_pos_total", proposer="ngram", position=str(position))
        for position in (1, 2, 3, 4)
    ]
    assert (examined, accepted) == ([2, 1, 1, 0], [1, 1, 0, 0])
    assert value(metrics, f"{prefix}_drafts_total", proposer="ngram") == 2
    assert value(metrics, f"{prefix}_draft_tokens_total", proposer="ngram") == 8
    assert value(metrics, f"{prefix}_accepted_tokens_total", proposer="ngram") == 2


def test_a_round_without_a_draft_counts_its_decision_and_nothing_else():
    """k = 0 is a decision with a length, not a draft."""
    metrics = Metrics(version="1")
    metrics.observe_step(a_step([a_round(proposer="none", k=0, drafted=0, examined=0, accepted=0)]), 0.0)
    assert value(metrics, "specd_spec_decode_num_drafts_total", proposer="none") is None
    assert value(metrics, "specd_draft_length_bucket", proposer="none", le="0.0") == 1
    assert value(metrics, "specd_policy_decisions_total", reason="acceptance") == 1


def test_every_reason_restart_and_outcome_starts_at_zero():
    """A first increase can be seen only on a series that was there before."""
    metrics = Metrics(version="1", restart_reasons=("crash",))
    metrics.alarm.declare_receivers(["ops"])
    metrics.set_target("t1", "d1", "none", ["layer-skip"])
    assert {value(metrics, "specd_policy_decisions_total", reason=reason) for reason in Reason} == {0}
    assert value(metrics, "specd_engine_restarts_total", reason="crash") == 0
    assert value(metrics, "specd_webhook_deliveries_total", receiver="ops", outcome="gave_up") == 0
    assert value(metrics, "specd_spec_decode_num_drafts_total", proposer="layer-skip") == 0


def test_acceptance_is_nan_until_something_was_examined():
    """A class in which nothing was drafted has no acceptance, not an acceptance of 0."""
    metrics = Metrics(version="1")
    metrics.observe_step(a_step([a_round(proposer="none", k=0, drafted=0, examined=0, accepted=0)]), 0.0)
    assert math.isnan(value(metrics, "specd_acceptance", **{"class": "chat"}))
    metrics.observe_step(a_step([a_round()]), 0.0)
    assert value(metrics, "specd_acceptance", **{"class": "chat"}) == pytest.approx(2 / 3)


def test_forced_tokens_are_counted_but_are_no_acceptance():
    """They have a proposer's label of their own; a class's acceptance, for dashboard and admin, is of real drafts."""
    metrics, ledger = Metrics(version="1"), Ledger()
    step = a_step([a_round(proposer="grammar", examined=4, accepted=4)])
    metrics.observe_step(step, 0.0)
    ledger.step(step)
    assert value(metrics, "specd_spec_decode_num_accepted_tokens_total", proposer="grammar") == 4
    assert math.isnan(value(metrics, "specd_acceptance", **{"class": "chat"}))
    assert ledger.acceptance() == {"chat": None}


def test_the_acceptance_of_a_class_is_that_of_its_proposers_weighted_by_their_rounds():
    """Not by their tokens, of which whoever drafts long has more; and each proposer's own stays to be seen."""
    metrics = Metrics(version="1")
    metrics.observe_step(a_step([a_round(drafted=4, examined=4, accepted=4)]), 0.0)
    metrics.observe_step(a_step([a_round(proposer="eagle", drafted=1, examined=1, accepted=0)]), 0.0)
    own = [
        value(metrics, "specd_proposer_acceptance", **{"class": "chat", "proposer": proposer})
        for proposer in ("ngram", "eagle")
    ]
    assert own == [1.0, 0.0]
    assert value(metrics, "specd_acceptance", **{"class": "chat"}) == pytest.approx(0.5, abs=0.01)


def test_acceptance_follows_the_evidence_and_waits_where_there_is_none():
    """Half the weight is gone after one half-life of examined tokens; no evidence changes nothing."""
    acceptance = Acceptance()
    for _ in range(5000):
        acceptance.add(examined=1, accepted=1)
    for _ in range(int(Acceptance.HALF_LIFE)):
        acceptance.add(examined=1, accepted=0)
    assert acceptance.value == pytest.approx(0.5, abs=0.01)
    before = acceptance.value
    acceptance.add(examined=0, accepted=0)
    assert acceptance.value == before


def test_goodput_is_what_was_committed_lately_and_falls_to_zero_when_idle():
    """The rate covers its window only, and silence counts."""
    clock = Clock()
    metrics = Metrics(version="1", clock=clock)
    for _ in range(100):
        clock.now += 0.2
        metrics.observe_step(a_step(committed=4), clock.now)
    assert value(metrics, "specd_goodput_tokens_per_second") == pytest.approx(20, rel=0.05)
    clock.now += Rate.WINDOW + 1
    assert value(metrics, "specd_goodput_tokens_per_second") == 0


def test_token_times_belong_to_tokens():
    """One wait for the first token, then each pause shared by the tokens it brought."""
    metrics = Metrics(version="1")
    metrics.request_started("r", 10.0)
    for now, tokens, finish in ((10.5, [1], None), (10.7, [2, 3], None), (10.8, [4], "stop")):
        metrics.observe_step(a_step(outputs=[Output(id="r", tokens=tokens, finish=finish)]), now)
    metrics.observe_step(a_step(outputs=[Output(id="r", tokens=[5])]), 99.0)
    assert value(metrics, "specd_time_to_first_token_seconds_count") == 1
    assert value(metrics, "specd_time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value(metrics, "specd_inter_token_seconds_count") == 3
    assert value(metrics, "specd_inter_token_seconds_sum") == pytest.approx(0.3)
    assert value(metrics, "specd_inter_token_seconds_bucket", le="0.05") == 0
    assert value(metrics, "specd_inter_token_seconds_bucket", le="0.25") == 3


def test_an_engine_that_dies_leaves_no_pause_behind():
    """The next engine's tokens are not measured against those of the last one."""
    metrics = Metrics(version="1")
    metrics.request_started("a", 10.0)
    metrics.request_started("b", 10.0)
    metrics.observe_step(a_step(outputs=[Output(id="a", tokens=[1])]), 11.0)
    metrics.engine_restarted("crash")
    metrics.observe_step(a_step(outputs=[Output(id="a", tokens=[2]), Output(id="b", tokens=[1])]), 50.0)
    assert value(metrics, "specd_engine_restarts_total", reason="crash") == 1
    assert value(metrics, "specd_time_to_first_token_seconds_count") == 1
    assert value(metrics, "specd_inter_token_seconds_count") == 0


def test_whoever_is_silent_for_an_hour_is_let_go_at_an_update():
    """Requests that were left in an engine which was ended say no more; others' times go on over an update."""
    clock = Clock()
    metrics = Metrics(version="1", clock=clock)
    metrics.request_started("lost", clock.now)
    clock.now += 3600
    metrics.request_started("new", clock.now)
    metrics.set_target("t2", "d", "none", ())
    for name in ("lost", "new"):
        metrics.observe_step(a_step(outputs=[Output(id=name, tokens=[1])]), clock.now + 1)
    assert value(metrics, "specd_time_to_first_token_seconds_count") == 1


def test_load_is_that_of_the_last_word_from_the_engine():
    """A step sets it, and idleness clears it."""
    metrics = Metrics(version="1")
    metrics.observe_step(a_step(running=3, waiting=2, load_state=LoadState.SHRUNK), 0.0)
    assert value(metrics, "specd_running_requests") == 3
    assert value(metrics, "specd_waiting_requests") == 2
    assert value(metrics, "specd_load_state") == 1
    assert [value(metrics, "specd_kv_blocks", state=state) for state in ("free", "used", "cached")] == [
        85,
        10,
        5,
    ]
    metrics.observe_idle(Idle(step=2, kv=KVUsage(free=100, used=0)))
    assert value(metrics, "specd_running_requests") == 0
    assert value(metrics, "specd_kv_blocks", state="used") == 0


def test_the_error_of_predicted_steps_stays_until_the_next_word_of_it():
    """The engine tells of it now and then; status shows the same."""
    metrics, ledger = Metrics(version="1"), Ledger()
    for told in ((CostError("all", 0.03, 0.1, 9), CostError("2-4", 0.04, 0.2, 9)), ()):
        metrics.observe_step(a_step(cost_errors=told), 0.0)
        ledger.step(a_step(cost_errors=told))
    assert value(metrics, "specd_step_cost_error", rows="all", statistic="median") == 0.03
    assert value(metrics, "specd_step_cost_error", rows="2-4", statistic="p90") == 0.2
    assert ledger.cost_errors()["2-4"] == {"median": 0.04, "p90": 0.2}


def test_preemptions_add_up():
    """From 0, so that the first one is seen."""
    metrics = Metrics(version="1")
    assert value(metrics, "specd_preemptions_total") == 0
    for now in (0.0, 1.0):
        metrics.observe_step(a_step(preempted=2), now)
    assert value(metrics, "specd_preemptions_total") == 4


def test_a_failed_reload_keeps_the_time_of_the_last_good_one():
    """Successful turns 0 while the timestamp stays."""
    metrics = Metrics(version="1")
    assert value(metrics, "specd_config_last_reload_successful") is None
    metrics.config_reloaded(ok=True, unix_time=100.0)
    metrics.config_reloaded(ok=False, unix_time=200.0)
    assert value(metrics, "specd_config_last_reload_successful") == 0
    assert value(metrics, "specd_config_last_reload_success_timestamp_seconds") == 100


def test_only_the_pair_that_is_served_has_an_info_series():
    """A target update replaces the series instead of adding one."""
    metrics = Metrics(version="1")
    metrics.set_target("t1", "d1", "none", ["ngram"])
    metrics.set_target("t2", "d1", "none", ["ngram"])
    [info] = [family for family in families(metrics) if family.name == "specd_target_info"]
    assert [sample.labels["revision"] for sample in info.samples] == ["t2"]


def test_a_step_of_48_requests_costs_little():
    """The best of many tries stays far below a step's own time, on any host (typically 50 µs)."""
    metrics = Metrics(version="1")
    ids = [f"r{number}" for number in range(48)]
    rounds = [
        a_round(name, k=n % 5, drafted=n % 5, examined=min(n % 5, 2), accepted=0)
        for n, name in enumerate(ids)
    ]
    step = a_step(rounds, [Output(id=name, tokens=[1, 2]) for name in ids], committed=96)
    for name in ids:
        metrics.request_started(name, 0.0)
    costs = []
    for number in range(200):
        begun = time.perf_counter()
        metrics.observe_step(step, float(number))
        costs.append(time.perf_counter() - begun)
    assert min(costs) < 0.001
