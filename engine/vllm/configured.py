"""What vLLM's configuration says to our scheduler. Reads vLLM's objects and imports nothing of vLLM.

By `--additional-config '{"specd_policy": {"k_max": 5}}'`, or by the environment, which keeps the name under which vLLM
stores what it has compiled: `SPECD_VLLM_POLICY` (JSON) and `SPECD_VLLM_SOCKET`.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.api import Ready
from engine.vllm.link import SOCKET_KEY, SOCKET_VARIABLE
from engine.vllm.steering import Drafter
from policies.settings import PolicySettings

POLICY_VARIABLE: Final = "SPECD_VLLM_POLICY"
POLICY_KEY: Final = "specd_policy"


class ConfigurationError(Exception):
    """The message says what is wrong, and what to set instead."""


def socket_of(vllm_config: Any) -> str:
    """Where somebody listens; empty where nobody does."""
    return str(_additional(vllm_config).get(SOCKET_KEY) or os.environ.get(SOCKET_VARIABLE, ""))


def policy_of(vllm_config: Any) -> PolicySettings:
    """What to begin with, until a listener says otherwise. Raises ConfigurationError."""
    given, where = _additional(vllm_config).get(POLICY_KEY), POLICY_KEY
    try:
        if given is None:
            given, where = msgspec.json.decode(os.environ.get(POLICY_VARIABLE) or "{}"), POLICY_VARIABLE
        settings = msgspec.convert(given, PolicySettings)
    except msgspec.MsgspecError as fault:
        raise ConfigurationError(f"{where} is not a policy: {fault}; docs/vllm.md lists its keys") from None
    unknown = [*_unknown(given, settings), *_unknown(given.get("load", {}), settings.load)]
    if unknown:
        raise ConfigurationError(f"{where} has no key {unknown[0]}; docs/vllm.md lists its keys")
    return settings


def drafter_of(vllm_config: Any, most: int, table: list[int] | None) -> Drafter:
    """Who drafts. most: vLLM's num_speculative_tokens; table: its draft length by batch size, if it has one."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return Drafter("none", 0, (0,))
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    return Drafter(str(speculative.method), most, _lengths(vllm_config, most, table), asynchronous)


def hello_of(vllm_config: Any, drafter: Drafter, kv_blocks: int) -> Ready:
    """What is said of this engine to whoever listens."""
    model = vllm_config.model_config
    return Ready(
        model_path=str(model.model),
        model_type=str(getattr(model.hf_config, "model_type", "")),
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=str(model.quantization or "none"),
        max_context=int(model.max_model_len),
        kv_blocks=kv_blocks,
        block_size=int(vllm_config.cache_config.block_size),
        proposers=(drafter.method,) if drafter.most else (),
        memory={},
    )


def warning_of(vllm_config: Any, drafter: Drafter) -> str | None:
    """What keeps the policy from steering all that it could."""
    if not drafter.most:
        return "vLLM drafts nothing: give it a --speculative-config, there is nothing to steer"
    if len(drafter.lengths) > 1 or drafter.is_seen:
        return None
    if vllm_config.parallel_config.data_parallel_size > 1:
        return "with data parallelism vLLM drafts equally far on all ranks: only what is verified is steered"
    return (
        "full CUDA graphs exist only for the draft lengths that vLLM is told at the start, and it was told of"
        f" {drafter.most} alone: name each that the policy may choose in num_speculative_tokens_per_batch_size"
    )


def _lengths(vllm_config: Any, most: int, table: list[int] | None) -> tuple[int, ...]:
    """That vLLM can draft in a step: on CUDA those for which it captures graphs, with several ranks one."""
    if vllm_config.parallel_config.data_parallel_size > 1:
        return (most,)
    captures = vllm_config.device_config.device_type != "cpu" and not vllm_config.model_config.enforce_eager
    return tuple(sorted({most, *(table or ())[1:]})) if captures else tuple(range(most + 1))


def _unknown(given: Mapping[str, Any], settings: Any) -> list[str]:
    return [key for key in given if not hasattr(settings, key)]


def _additional(vllm_config: Any) -> Mapping[str, Any]:
    found = vllm_config.additional_config
    return found if isinstance(found, Mapping) else {}
