"""What the scenarios ask for that vLLM cannot do as the engine, and why. docs/vllm.md says the same to operators."""

from typing import Final

_SEEDS: Final = "a seed is refused with vLLM for CPU, which ends when a prompt with one is read in parts"

CANNOT: Final = {
    "test_calibrate.py": "`specd calibrate` measures specd's own engine; with vLLM costs are learned as it serves",
    "test_drift_alarm.py": "there is no layer-skip, which the scenario ruins as the daemon runs",
    "test_drift_from_traffic.py": "there is no layer-skip, which the scenario ruins as the daemon runs",
    "test_encoder_decoder.py": "vLLM serves no T5",
    "test_demo_model.py::test_it_answers_in_the_shape_of_a_schema": "no forced tokens: a grammar saves no rounds",
    "test_draft_model.py": "target and draft share one KV pool: their memory is not told apart",
    "test_gguf.py": "the linears are quantised to int8, which specd's own engine does",
    "test_openai_parameters.py::test_tokens_can_be_forced_and_kept_away": "logit_bias is refused where anybody drafts",
    "test_openai_parameters.py::test_a_stop_token_waits_for_the_least_number_of_tokens": (
        "logit_bias is refused where anybody drafts"
    ),
    "test_openai_client.py::test_seeded_sampling_is_repeatable": _SEEDS,
    "test_openai_parameters.py::test_the_first_of_several_texts_is_the_only_one_of_its_seed": _SEEDS,
    "test_openai_parameters.py::test_texts_of_a_stream_are_those_of_the_whole": _SEEDS,
    "test_signals.py::test_sigterm_while_the_model_loads": "what vLLM writes as it starts is in the log",
}
"""By module, or by test."""


def reason(nodeid: str) -> str | None:
    """Why this test is left out with vLLM, or None."""
    path, _, test = nodeid.partition("::")
    module = path.rpartition("/")[2]
    return CANNOT.get(module) or CANNOT.get(f"{module}::{test.partition('[')[0]}")
