"""What engines of others tell, read: their metrics, and the fields of their answers, as their sources name them."""

import json
from dataclasses import astuple
from math import isnan

import pytest

from policies.observed import Look, Report, interval
from policies.observed.gather import POSITIONS
from specd.observe.answer import Told, told
from specd.observe.engines import counters, kind_of
from specd.observe.errors import ObserveError
from specd.observe.scrape import Page

VLLM = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76443e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 2.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="demo"} 900.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="demo"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="demo"} 3.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 300.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.76443e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 600.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 330.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="0"} 210.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="1"} 120.0
"""

LLAMACPP = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 900
llamacpp:spec_decode_num_draft_tokens_total 600
llamacpp:spec_decode_num_accepted_tokens_total 330
llamacpp:spec_decode_num_drafts_total 300
llamacpp:requests_processing 1
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 210
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 120
"""

SGLANG = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.5
sglang:spec_accept_rate{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.375
sglang:spec_num_draft_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 1000
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 510
sglang:num_requests_total{model_name="m"} 10
sglang:spec_verify_calls_total{model_name="m"} 600
"""

TGI = """\
# TYPE tgi_request_skipped_tokens histogram
tgi_request_skipped_tokens_bucket{le="0"} 110
tgi_request_skipped_tokens_bucket{le="1"} 170
tgi_request_skipped_tokens_bucket{le="2"} 210
tgi_request_skipped_tokens_bucket{le="+Inf"} 210
tgi_request_skipped_tokens_sum 140
tgi_request_skipped_tokens_count 210
tgi_request_success 10
tgi_batch_current_size 4
"""


def read(text: str):
    page = Page.read(text)
    return counters(kind_of(page), page)


@pytest.mark.parametrize("text", [VLLM, LLAMACPP])
def test_the_counters_of_vllm_and_llama_cpp_are_of_one_meaning(text: str) -> None:
    found = read(text)
    assert (found.drafts, found.drafted, found.accepted, found.kept) == (300, 600, 330, (210, 120))
    assert found.generated == 900


def test_vllm_tells_how_many_requests_have_ended_and_since_when_it_runs() -> None:
    found = read(VLLM)
    assert (found.requests, found.running, found.started) == (7, 2, 1.76443e9)
    assert not found.whole


def test_llama_cpp_counts_a_request_when_it_has_ended() -> None:
    assert read(LLAMACPP).whole


def test_several_ranks_are_counted_together() -> None:
    other = VLLM.replace('engine="0"', 'engine="1"').replace("process_start", "# process_start")
    found = read(VLLM + other)
    assert (found.drafts, found.kept, found.running) == (600, (420, 240), 4)


def test_newer_names_with_an_underscore_are_the_same() -> None:
    assert astuple(read(VLLM.replace("vllm:", "vllm_"))) == astuple(read(VLLM))


def test_an_engine_that_does_not_speculate_has_no_counters_of_it() -> None:
    page = Page.read(VLLM.replace("spec_decode", "other"))
    assert counters("vllm", page) is None
    assert counters("transformers", page) is None


def test_rounds_and_tokens_of_sglang_say_what_was_accepted() -> None:
    text = (
        SGLANG.replace(" 510", " 0")
        .replace(" 1000", " 0")
        .replace(" 600", " 0")
        .replace('m"} 10\n', 'm"} 0\n')
    )
    came = interval(read(text), read(SGLANG)).came
    assert (came.drafts, came.drafted, came.accepted) == (600, 2400, 900)
    assert Report.of(came, 0.0).measure == "4 drafted"


def without(text: str, name: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if name not in line)


def test_a_rate_of_sglang_that_reads_0_without_steps_is_none() -> None:
    """Its gauges begin with 0, and are 0 again when nothing was verified: that is no acceptance of 0."""
    older = without(SGLANG, "verify_calls")
    idle = older.replace("} 2.5", "} 0.0").replace("} 0.375", "} 0.0")
    assert isnan(read(idle).length)
    earlier = read(idle.replace(" 1000", " 0").replace("} 10\n", "} 5\n"))
    assert interval(earlier, read(idle)).look is Look.IDLE
    came = interval(earlier, read(older)).came
    assert came.drafts == (1000 - 5) / 2.5


def test_buckets_of_tgi_are_positions() -> None:
    """Ten of its steps were the first tokens of requests, which had no draft."""
    zero = Page.read(
        without(TGI, "le=").replace("count 210", "count 0").replace("sum 140", "sum 0")
        + "\n".join(f'tgi_request_skipped_tokens_bucket{{le="{le}"}} 0' for le in ("0", "1", "2", "+Inf"))
    )
    before = counters("tgi", zero)
    came = interval(before, read(TGI.replace("success 10", "success 20"))).came
    report = Report.of(came, 0.0)
    assert report.measure == POSITIONS
    assert (report.examined, report.accepted) == ((200, 100), (100, 40))


@pytest.mark.parametrize("text", ["<html><body>Sign in</body></html>", "ok", "vllm:a{b} c", '{"error": 1}'])
def test_what_is_no_page_of_metrics_is_told_to_be_none(text: str) -> None:
    with pytest.raises(ObserveError, match="no page of metrics"):
        Page.read(text)


def test_metrics_of_something_else_are_told_to_be_so() -> None:
    with pytest.raises(ObserveError, match="no engine that is known"):
        kind_of(Page.read("node_cpu_seconds_total 5\n"))


def test_labels_may_hold_anything() -> None:
    page = Page.read('a{x="} 7, \\"y",position="0"} 1.5 1700000000\na{x="b",position="1"} +Inf\nb NaN\n')
    assert page.by_label("a", "position") == [1.5, float("inf")]
    assert isnan(page.sum("b"))


def test_vllm_tells_each_round_where_it_is_asked_for_details() -> None:
    found = {
        "acceptance_histogram": [1, 1, 1, 0],
        "num_draft_tokens": 7,
        "num_spec_steps": 3,
        "per_step_drafted": [3, 1, 3],
        "per_step_accepted": [2, 1, 0],
    }
    assert told({"metrics": {"speculative_decoding": found}}) == Told(POSITIONS, (3, 1, 1), (2, 1, 0))


def test_of_a_histogram_later_positions_count_where_each_draft_went_to_the_end() -> None:
    found = {"acceptance_histogram": [2, 3, 5], "num_draft_tokens": 20}
    assert told({"metrics": {"speculative_decoding": found}}) == Told(POSITIONS, (10, 8), (8, 5))
    found["num_draft_tokens"] = 19
    assert told({"metrics": {"speculative_decoding": found}}) == Told(POSITIONS, (10,), (8,))


def test_totals_of_llama_cpp_compare_with_nothing() -> None:
    """Of drafts whose length nobody tells: the share would fall when they get longer."""
    assert told({"timings": {"predicted_n": 40, "draft_n": 30, "draft_n_accepted": 18}}) is None


SGLANG_FIELDS = {
    "spec_accept_rate": 63 / 215,
    "spec_accept_length": 106 / 43,
    "spec_verify_ct": 43,
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}
SGLANG_OLDER = {
    "spec_accept_rate": 63 / 215,
    "spec_verify_ct": 43,
    "spec_accept_token_num": 63,
    "spec_draft_token_num": 215,
}


@pytest.mark.parametrize(
    "answer",
    [
        {"sglext": {"spec_tokens_details": SGLANG_FIELDS}},
        {"choices": [{"meta_info": SGLANG_FIELDS}]},
        {"meta_info": SGLANG_FIELDS},
    ],
)
def test_sglang_tells_a_histogram_wherever_it_stands(answer) -> None:
    found = told(answer)
    assert found == Told(POSITIONS, (43, 32, 18, 7, 3), (32, 18, 7, 3, 3))


def test_an_older_sglang_tells_totals_at_its_k() -> None:
    assert told({"choices": [{"meta_info": SGLANG_OLDER}]}) == Told("5 drafted", (215,), (63,))


def test_sglang_without_a_round_tells_no_rate_whatever_it_reads() -> None:
    fields = {
        "spec_accept_rate": 0.0,
        "spec_verify_ct": 0,
        "spec_accept_token_num": 0,
        "spec_draft_token_num": 0,
    }
    assert told({"choices": [{"meta_info": fields}]}) is None


def test_tgi_and_transformers_tell_nothing_of_drafts() -> None:
    tgi = {
        "choices": [{"message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25},
    }
    assert told(tgi) is None


@pytest.mark.parametrize("value", [None, "many", [1], -3, True, {"a": 1}])
def test_fields_of_another_shape_are_as_if_they_were_not_there(value) -> None:
    for answer in (
        {"metrics": value},
        {"metrics": {"speculative_decoding": {"acceptance_histogram": value, "num_draft_tokens": value}}},
        {"timings": {"draft_n": value, "draft_n_accepted": value}},
        {"choices": [{"meta_info": {"spec_verify_ct": value, "spec_accept_histogram": value}}]},
        {"specd": {"examined": value, "accepted": value}},
    ):
        found = told(json.loads(json.dumps(answer)))
        assert found is None or sum(found.examined) > 0


def test_specd_tells_what_was_examined() -> None:
    assert told({"specd": {"examined": [9, 5], "accepted": [5, 1]}}) == Told(POSITIONS, (9, 5), (5, 1))
