"""What vLLM is started with, from what the daemon asks for. Pure, and without vLLM."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engine.api import DraftKind, DraftSettings, Launch, Quantization

SCHEDULER: Final = "engine.vllm.scheduler.SpecdScheduler"
ASYNCHRONOUS: Final = "engine.vllm.scheduler.SpecdAsyncScheduler"

_OURS: Final[Mapping[str, str]] = {
    "model": "model.target.path",
    "tokenizer": "model.target.path",
    "dtype": "model.target.dtype",
    "max_model_len": "engine.max_context",
    "max_num_seqs": "engine.max_running",
    "enable_prefix_caching": "engine.prefix_cache",
    "speculative_config": "model.draft",
    "spec_method": "model.draft.kind",
    "spec_model": "model.draft",
    "spec_tokens": "policy.k_max",
    "scheduler_cls": "policy",
}
"""vLLM's options that specd sets, and by which key it is asked for them."""

FIXED: Final = frozenset({"suffix", "medusa", "custom_class"})
"""Methods of vLLM that draft as far as was configured, whatever the step says."""

_AUTO_FIT: Final = -1  # the longest context that the KV memory holds, no longer than the model's
_SPARE_ROWS: Final = 64  # of prompts, in a step in which all that may run decode with the longest drafts


def unsupported_reason(
    kinds: Sequence[DraftKind], quantization: Quantization, options: Mapping[str, Any]
) -> str | None:
    """Why vLLM cannot be started so, or None. What only vLLM can tell, it tells itself. kinds: who is to draft;
    "auto" is none of them.
    """
    return next(_faults(kinds, quantization, options), None)


def _faults(
    kinds: Sequence[DraftKind], quantization: Quantization, options: Mapping[str, Any]
) -> Iterator[str]:
    if len(kinds) > 1:
        yield f"vLLM drafts with one proposer, and model.draft.kind names {list(kinds)}: leave one of them"
    if "layer-skip" in kinds:
        yield "vLLM does not draft with layers of the target itself: take another model.draft.kind"
    if quantization == "int8":
        yield (
            'model.target.quantization = "int8" is done by specd\'s own engine: with vLLM take "none", and name one of '
            "its methods in engine.vllm.options.quantization"
        )
    for name in options:
        if name in _OURS:
            yield f"engine.vllm.options names {name}, which specd sets itself: leave it out, use {_OURS[name]}"


def engine_arguments(launch: Launch) -> dict[str, Any]:
    """Of vLLM's `AsyncEngineArgs`. `launch` is one without an `unsupported_reason`."""
    ours: dict[str, Any] = {
        "model": launch.model_path,
        "dtype": launch.dtype,
        "max_model_len": launch.max_context or _AUTO_FIT,
        "max_num_seqs": launch.max_running,
        "max_num_batched_tokens": _rows(launch),
        "enable_prefix_caching": launch.prefix_cache,
        "kv_cache_memory_bytes": launch.kv_bytes,
        "scheduler_cls": ASYNCHRONOUS if launch.vllm_options.get("async_scheduling") else SCHEDULER,
        "async_scheduling": False,
        "speculative_config": _speculative_config(launch),
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        "disable_log_stats": True,
        "enforce_eager": launch.device == "cuda" and not launch.cuda_graphs,
    }
    if launch.quantization != "none":
        ours["quantization"] = launch.quantization
    if "gpu_memory_utilization" in launch.vllm_options:
        del ours["kv_cache_memory_bytes"]
    if launch.device == "cpu" and _alone(launch):
        ours["distributed_executor_backend"] = "uni"
    return ours | launch.vllm_options


def environment(launch: Launch, socket: Path, variable: str, given: Mapping[str, str]) -> dict[str, str]:
    """Variables that vLLM is to find, unless they are `given`, by the operator. socket: where the scheduler finds us,
    by this variable.
    """
    found = {
        variable: str(socket),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",  # what is to be served lies on disk by now
    }
    if launch.device == "cpu" and _alone(launch):
        found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else one core computes and another one polls
    if launch.threads:
        found["OMP_NUM_THREADS"] = str(launch.threads)
    if threads := _threads({**found, **given}):
        # vLLM's lookups are numba's, which has a thread for each core and gives OpenMP as many, for all that computes.
        found["NUMBA_NUM_THREADS"] = str(threads)
    return found


def _threads(variables: Mapping[str, str]) -> int:
    """How many OpenMP is told to take; 0 where it is told nothing. Numbers after the first are for nested ones."""
    first = variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _speculative_config(launch: Launch) -> dict[str, Any] | None:
    """With every length that the policy may choose where vLLM captures graphs for those alone that it was told of."""
    found = speculative(launch.draft, launch.policy.k_max)
    if found is None or found["method"] in FIXED or not _captures(launch):
        return found
    return found | {"num_speculative_tokens_per_batch_size": lengths(launch.policy.k_max, launch.max_running)}


def lengths(most: int, requests: int) -> list[list[int]]:
    """vLLM's table of [least requests, most requests, tokens of a draft], as ours names them all: it says nothing else,
    since our scheduler chooses. One request more takes the next shorter length; where so many cannot run, those that
    are named are spread from `most` to none.
    """
    named = min(most + 1, requests)
    found = [[at + 1, at + 1, round(most * (1 - at / max(named - 1, 1)))] for at in range(named)]
    found[-1][1] = requests
    return found


def _captures(launch: Launch) -> bool:
    eager = launch.vllm_options.get("enforce_eager", not launch.cuda_graphs)
    ranks = launch.vllm_options.get(
        "data_parallel_size", 1
    )  # several draft equally far: vLLM drops the table
    return launch.device == "cuda" and not eager and ranks == 1


def speculative(draft: DraftSettings, most: int) -> dict[str, Any] | None:
    """vLLM's `speculative_config`; None for no drafts. most: tokens of a draft, which the policy chooses up to."""
    kind = next((kind for kind in draft.kinds if kind != "none"), None)
    if kind is None or not most:
        return None
    common = {"num_speculative_tokens": most}
    match kind:
        case "ngram":
            lookup = {"prompt_lookup_min": draft.ngram_min, "prompt_lookup_max": draft.ngram_max}
            return common | {"method": "ngram"} | lookup
        case "suffix":  # what others wrote makes a text faster that says the same, and tells that it was said
            return common | {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
        case "model":
            model = {"method": "draft_model", "model": draft.model_path}
            mapped = {"use_heterogeneous_vocab": True} if draft.vocabulary == "mapped" else {}
            return common | model | mapped
        case "eagle" | "medusa":
            head = "medusa" if kind == "medusa" else _eagle(Path(draft.head_path))
            return common | {"method": head, "model": draft.head_path}
        case _:
            return common | {"method": "mtp"}


def _eagle(head: Path) -> str:
    """Which of vLLM's two ways to read an EAGLE head: by the layers that it reads."""
    config = json.loads((head / "config.json").read_text())
    layer = config.get("transformer_layer_config", config)
    third = "draft_vocab_size" in {**layer, **config} or "Eagle3" in str(config.get("architectures", ""))
    return "eagle3" if third else "eagle"


def end_tokens(model: Path) -> frozenset[int]:
    """Tokens by which the model ends a text: those of its generation config, else those of its config."""
    for name in ("generation_config.json", "config.json"):
        file = model / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def _rows(launch: Launch) -> int:
    """Rows of a step: vLLM counts drafts among them, we do not."""
    drafted = launch.policy.k_max if any(kind != "none" for kind in launch.draft.kinds) else 0
    return max(launch.max_batch_tokens, launch.max_running + _SPARE_ROWS) + launch.max_running * drafted


def _alone(launch: Launch) -> bool:
    """Whether one process of vLLM's computes."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return all(launch.vllm_options.get(size, 1) == 1 for size in sizes)
