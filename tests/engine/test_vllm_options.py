"""What vLLM is asked for, in its words; without vLLM."""

import json
import math
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import DraftSettings, Grammar, Launch, Request, SamplingParams
from engine.vllm.last_words import reason_in
from engine.vllm.options import (
    ASYNCHRONOUS,
    SCHEDULER,
    end_tokens,
    engine_arguments,
    environment,
    lengths,
    speculative,
    unsupported_reason,
)
from engine.vllm.sampling import sampling_arguments, structure, tags
from engine.vllm.sampling import unsupported_reason as cannot_draw
from policies.settings import PolicySettings

LAUNCH = Launch(model_path="/m", max_running=8, max_batch_tokens=64, policy=PolicySettings(k_max=5))


def sampled(**asked) -> dict:
    given = SamplingParams(max_tokens=5, **asked)
    return sampling_arguments(given, 0, vocabulary=6, ends=frozenset({1}))


def test_what_the_daemon_asks_for_reaches_vllm() -> None:
    """Test that sizes, scheduler and drafts are given, that drafts have rows of their own, and options come last."""
    found = engine_arguments(
        structs.replace(LAUNCH, max_context=100, vllm_options={"seed": 3, "block_size": 32})
    )
    assert (found["model"], found["max_model_len"], found["max_num_seqs"]) == ("/m", 100, 8)
    assert found["max_num_batched_tokens"] == 8 + 64 + 8 * 5
    assert found["scheduler_cls"] == SCHEDULER
    assert found["speculative_config"]["num_speculative_tokens"] == 5
    assert (found["seed"], found["block_size"]) == (3, 32)
    assert found["kv_cache_memory_bytes"] == LAUNCH.kv_bytes
    assert found["distributed_executor_backend"] == "uni"


def test_asynchronous_scheduling_has_a_scheduler_of_its_own() -> None:
    assert engine_arguments(LAUNCH)["async_scheduling"] is False
    found = engine_arguments(structs.replace(LAUNCH, vllm_options={"async_scheduling": True}))
    assert (found["scheduler_cls"], found["async_scheduling"]) == (ASYNCHRONOUS, True)


def test_a_share_of_the_device_replaces_the_bytes() -> None:
    found = engine_arguments(structs.replace(LAUNCH, vllm_options={"gpu_memory_utilization": 0.5}))
    assert "kv_cache_memory_bytes" not in found


def test_several_devices_are_left_to_vllm() -> None:
    """Test that neither executor nor environment keep it in one process."""
    wide = structs.replace(LAUNCH, vllm_options={"tensor_parallel_size": 2})
    assert "distributed_executor_backend" not in engine_arguments(wide)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment(wide, Path("/s"), "SOCKET", {})
    assert environment(LAUNCH, Path("/s"), "SOCKET", {})["SOCKET"] == "/s"


@pytest.mark.parametrize(
    ("threads", "given", "wanted"),
    [
        (0, {}, (None, None)),
        (2, {}, ("2", "2")),
        (2, {"OMP_NUM_THREADS": "3"}, ("2", "3")),
        (0, {"OMP_NUM_THREADS": "3,1"}, (None, "3")),
        (0, {"OMP_NUM_THREADS": "all"}, (None, None)),
    ],
)
def test_lookups_take_no_more_threads_than_what_computes(threads: int, given: dict, wanted: tuple) -> None:
    """Test that numba, which would set OpenMP's threads to the number of cores, is told of as many as OpenMP."""
    found = environment(structs.replace(LAUNCH, threads=threads), Path("/s"), "SOCKET", given)
    assert (found.get("OMP_NUM_THREADS"), found.get("NUMBA_NUM_THREADS")) == wanted


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        (DraftSettings(kinds=("none",)), None),
        (DraftSettings(ngram_min=1, ngram_max=3), ("ngram", 1, 3)),
        (DraftSettings(kinds=("suffix",)), ("suffix", None, None)),
        (DraftSettings(kinds=("model",), model_path="/d"), ("draft_model", None, None)),
        (DraftSettings(kinds=("medusa",), head_path="/h"), ("medusa", None, None)),
        (DraftSettings(kinds=("mtp",)), ("mtp", None, None)),
    ],
)
def test_drafts_have_vllms_names(draft: DraftSettings, wanted: tuple | None) -> None:
    found = speculative(draft, 4)
    keys = ("method", "prompt_lookup_min", "prompt_lookup_max")
    assert (found and tuple(found.get(key) for key in keys)) == wanted
    assert speculative(draft, 0) is None


@pytest.mark.parametrize(
    ("most", "requests", "table"),
    [
        (3, 48, [[1, 1, 3], [2, 2, 2], [3, 3, 1], [4, 48, 0]]),
        (3, 4, [[1, 1, 3], [2, 2, 2], [3, 3, 1], [4, 4, 0]]),
        (8, 3, [[1, 1, 8], [2, 2, 4], [3, 3, 0]]),
        (8, 1, [[1, 1, 8]]),
    ],
)
def test_vllms_table_names_every_length_that_the_policy_may_choose(most, requests, table) -> None:
    """Test that no number of requests is left out, and that where few may run the lengths are spread out."""
    assert lengths(most, requests) == table


@pytest.mark.parametrize(
    ("changed", "prepared"),
    [
        ({"device": "cuda"}, True),
        ({"device": "cpu"}, False),
        ({"device": "cuda", "cuda_graphs": False}, False),
        ({"device": "cuda", "vllm_options": {"enforce_eager": True}}, False),
        ({"device": "cuda", "cuda_graphs": False, "vllm_options": {"enforce_eager": False}}, True),
        ({"device": "cuda", "vllm_options": {"data_parallel_size": 2}}, False),
        ({"device": "cuda", "draft": DraftSettings(kinds=("suffix",))}, False),
        ({"device": "cuda", "draft": DraftSettings(kinds=("mtp",))}, True),
    ],
)
def test_vllm_is_told_of_every_length_where_it_captures_graphs_for_those_alone(changed, prepared) -> None:
    """Test that drafts which are as long as configured, and engines that capture nothing, have no table."""
    found = engine_arguments(structs.replace(LAUNCH, **changed))["speculative_config"]
    assert found.get("num_speculative_tokens_per_batch_size") == (lengths(5, 8) if prepared else None)


def test_a_table_of_vllms_is_for_drafts() -> None:
    nobody = structs.replace(LAUNCH, device="cuda", draft=DraftSettings(kinds=("none",)))
    assert engine_arguments(nobody)["speculative_config"] is None


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"transformer_layer_config": {"draft_vocab_size": 8}}, "eagle3"),
    ],
)
def test_an_eagle_head_is_read_as_what_it_is(tmp_path: Path, config: dict, method: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = speculative(DraftSettings(kinds=("eagle",), head_path=str(tmp_path)), 3)
    assert found == {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("kinds", "quantization", "options", "sentence"),
    [
        (("ngram", "suffix"), "none", {}, "drafts with one proposer"),
        (("layer-skip",), "none", {}, "layers of the target"),
        (("ngram",), "int8", {}, "own engine"),
        (("ngram",), "none", {"scheduler_cls": "x"}, "which specd sets itself"),
        (("ngram",), "fp8", {"seed": 1}, None),
    ],
)
def test_what_cannot_be_started_is_refused_by_a_sentence(kinds, quantization, options, sentence) -> None:
    reason = unsupported_reason(kinds, quantization, options)
    assert (sentence is None and reason is None) or sentence in reason


def test_the_ends_of_a_text_are_the_models_own(tmp_path: Path) -> None:
    """Test that the generation config comes first, that one token or several may be named, and that none is fine."""
    assert end_tokens(tmp_path) == frozenset()
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert end_tokens(tmp_path) == {2}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert end_tokens(tmp_path) == {3, 4}


def test_ends_are_stop_tokens() -> None:
    """Test that the model's ends are among them unless they are to be ignored, and always where a grammar decides."""
    assert sampled(stop_tokens=(4,))["stop_token_ids"] == [1, 4]
    assert sampled(stop_tokens=(4,), ignore_eos=True)["stop_token_ids"] == [4]
    assert sampled(ignore_eos=True, grammar=Grammar("regex", "a"))["stop_token_ids"] == [1]
    assert sampled()["ignore_eos"] is True


def test_banned_tokens_are_all_but_those_allowed() -> None:
    """Test that a ban, which vLLM has not, and a bias of -inf, become what is allowed."""
    assert sampled()["allowed_token_ids"] is None
    assert sampled(banned_tokens=(0, 5))["allowed_token_ids"] == [1, 2, 3, 4]
    assert sampled(allowed_tokens=(2, 3), banned_tokens=(3,))["allowed_token_ids"] == [2]
    biased = sampled(logit_bias={2: -math.inf, 3: 1.5})
    assert (biased["allowed_token_ids"], biased["logit_bias"]) == ([0, 1, 3, 4, 5], {3: 1.5})


def test_each_text_has_a_seed_and_only_the_first_tells_of_the_prompt() -> None:
    given = SamplingParams(max_tokens=5, seed=9, prompt_logprobs=1)
    first, second = [sampling_arguments(given, index, vocabulary=6, ends=frozenset()) for index in (0, 1)]
    assert first["seed"] == 9 != second["seed"]
    assert (first["prompt_logprobs"], second["prompt_logprobs"]) == (1, None)


def test_who_asked_for_no_seed_has_none() -> None:
    """Test that vLLM draws as it likes then, the faster way. On CPU, seeded requests with long prompts end its core."""
    for index in (0, 1):
        given = SamplingParams(max_tokens=5, seed=9, seeded=False)
        assert sampling_arguments(given, index, vocabulary=6, ends=frozenset())["seed"] is None


@pytest.mark.parametrize(
    ("asked", "drafts", "device", "fine"),
    [
        ({"top_k": 3}, True, "cpu", False),
        ({"top_k": 3}, True, "cuda", True),
        ({"top_k": 3}, False, "cpu", True),
        ({"top_k": 3, "temperature": 0.0}, True, "cpu", True),
        ({"top_p": 0.5}, True, "cpu", True),
    ],
)
def test_top_k_is_refused_on_cpu_where_anybody_drafts(
    asked: dict, drafts: bool, device: str, fine: bool
) -> None:
    reason = cannot_draw(SamplingParams(max_tokens=5, seeded=False, **asked), drafts=drafts, device=device)
    assert fine if reason is None else reason.startswith("top_k is asked for")


@pytest.mark.parametrize(
    ("asked", "device", "fine"),
    [
        ({"temperature": 0.8}, "cpu", False),
        ({"temperature": 0.8}, "cuda", True),
        ({"temperature": 0.8, "seeded": False}, "cpu", True),
        ({"temperature": 0.0}, "cpu", True),
    ],
)
def test_seeds_of_drawn_texts_are_refused_on_cpu(asked: dict, device: str, fine: bool) -> None:
    reason = cannot_draw(SamplingParams(max_tokens=5, seed=1, **asked), drafts=False, device=device)
    assert fine if reason is None else reason.startswith("seed is asked for")


@pytest.mark.parametrize(
    ("asked", "drafts", "sentence"),
    [
        ({"min_p": 0.1}, True, "min_p is asked for"),
        ({"logit_bias": {1: 2.0}}, True, "logit_bias is asked for"),
        ({"min_p": 0.1}, False, None),
        ({"logit_bias": {1: -math.inf}}, True, None),
        ({"temperature": 3.0}, False, "from 0.01 to 2.0"),
        ({"temperature": 0.0}, True, None),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_a_sentence(
    asked: dict, drafts: bool, sentence: str | None
) -> None:
    reason = cannot_draw(SamplingParams(max_tokens=5, **asked), drafts=drafts, device="cuda")
    assert (sentence is None and reason is None) or sentence in reason


@pytest.mark.parametrize(
    ("grammar", "wanted"),
    [
        (Grammar("json_schema", "{}"), {"json": "{}"}),
        (Grammar("json_object"), {"json_object": True}),
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("choice", '["a", "b"]'), {"choice": ["a", "b"]}),
        (Grammar("lark", 'start: "x"'), {"grammar": 'start: "x"'}),
    ],
)
def test_grammars_have_vllms_names(grammar: Grammar, wanted: dict) -> None:
    assert structure(grammar) == wanted


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"k": 3}, {"specd_k": 3}),
        ({"k_max": 0}, {"specd_k_max": 0}),
        ({"speculate": False}, {"specd_speculate": "off"}),
        ({"proposer": "ngram"}, {}),
        ({"proposer": "suffix"}, {"specd_speculate": "off"}),
    ],
)
def test_the_scheduler_is_told_whose_text_it_is(asked: dict, wanted: dict) -> None:
    """Test that class, tenant and id travel, and what the request says of drafts; nobody else's drafts are taken."""
    request = Request(
        id="r", prompt=[1], sampling=SamplingParams(max_tokens=1), traffic_class="c", tenant="t", **asked
    )
    always = {"specd_id": "r#1", "specd_class": "c", "specd_tenant": "t"}
    assert tags(request, "r#1", ("ngram",)) == always | wanted


def test_the_reason_of_vllms_own_process_is_found() -> None:
    """Test that the last error that was written is taken, and not the one that only says that there was one."""
    lines = [
        "(EngineCore pid=7) ERROR ValueError: too small",
        "(EngineCore pid=7) ERROR torch.OutOfMemoryError: no more ",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert reason_in(lines) == "OutOfMemoryError: no more"
    assert reason_in(["all is well"]) is None
