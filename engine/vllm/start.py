"""From what the daemon asks for to a vLLM that runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from tokenizers import Tokenizer

from engine.admission import Limits
from engine.api import Launch, Ready
from engine.available import available_bytes, mib
from engine.vllm.options import end_tokens, engine_arguments

_WARMING: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "scored": {"logprobs": 0},  # ranks are counted by a kernel of their own
    "read": {"prompt_logprobs": 0, "max_tokens": 1},
}
"""By name, what the requests ask for that have vLLM compile."""


class CannotStartError(Exception):
    """Why vLLM does not run; a sentence."""

    def __init__(self, text: str, *, lacks_memory: bool = False) -> None:
        super().__init__(text)
        self.lacks_memory = lacks_memory


class Started(NamedTuple):
    """vLLM, and what is to be known of it."""

    engine: Any
    """An `AsyncLLM`."""
    blocks: int
    block_size: int
    vocabulary: int
    max_context: int
    model_type: str
    ends: frozenset[int]
    """Tokens by which the model ends a text."""
    tokenizer: Tokenizer | None

    def limits(self, launch: Launch) -> Limits:
        """What this engine can hold."""
        return Limits(
            max_context=self.max_context,
            kv_positions=(self.blocks - 1) * self.block_size,  # one of them stands for no block
            max_running=launch.max_running,
            vocabulary=self.vocabulary,
            finds_stop_strings=self.tokenizer is not None,
        )


def start(launch: Launch) -> Started:
    """Start it, in a running event loop, which stands still meanwhile. Raises CannotStartError."""
    _require_memory(launch)
    engine = _engine(launch)
    config, file = engine.vllm_config, Path(launch.model_path) / "tokenizer.json"
    return Started(
        engine=engine,
        blocks=config.cache_config.num_gpu_blocks,
        block_size=config.cache_config.block_size,
        vocabulary=config.model_config.get_vocab_size(),
        max_context=config.model_config.max_model_len,
        model_type=config.model_config.hf_text_config.model_type,
        ends=end_tokens(Path(launch.model_path)),
        tokenizer=Tokenizer.from_file(str(file)) if file.exists() else None,
    )


async def warm_up(engine: Any) -> None:
    """Have vLLM compile what it compiles at the first use, which can take longer than an engine may seem to hang."""
    from vllm import SamplingParams  # noqa: PLC0415  only this process needs it

    prompt = {"type": "token", "prompt_token_ids": [0, 1, 0, 1, 0, 1, 0, 1]}
    for name, sampling in _WARMING.items():
        parameters = SamplingParams(
            **{"max_tokens": 8, **sampling},
            ignore_eos=True,
            detokenize=False,
            extra_args={"specd_class": "warm-up"},
        )
        async for _ in engine.generate(prompt, parameters, f"warm-up-{name}"):
            pass


def ready_of(launch: Launch, started: Started) -> Ready:
    """What the daemon is told."""
    return Ready(
        model_path=launch.model_path,
        model_type=started.model_type,
        dtype=launch.dtype,
        quantization=launch.quantization,
        max_context=started.max_context,
        kv_blocks=started.blocks,
        block_size=started.block_size,
        proposers=tuple(kind for kind in launch.draft.kinds if kind != "none"),
        memory={"weights": _weights(launch), "kv": launch.kv_bytes},
    )


def _weights(launch: Launch) -> int:
    """Their bytes on disk."""
    return sum(file.stat().st_size for file in Path(launch.model_path).glob("*.safetensors"))


def _require_memory(launch: Launch) -> None:
    """On a CPU it is looked after before: there vLLM takes what it wants, and the kernel ends it."""
    if launch.device != "cpu":
        return
    needs, available = _weights(launch) + launch.kv_bytes, available_bytes(torch.device("cpu"))
    if needs > available:
        raise CannotStartError(
            f"its weights and engine.kv_mib take {mib(needs)} and {mib(available)} of memory are available: lower "
            "engine.kv_mib, or take a smaller model",
            lacks_memory=True,
        )


def _engine(launch: Launch) -> Any:
    """An `AsyncLLM`."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415  only this process needs it
        from vllm.platforms import current_platform  # noqa: PLC0415
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
    except ImportError as fault:
        raise CannotStartError(
            f"engine.vllm.python has no vLLM that can be used ({fault}): make an environment by `make vllm-env`, "
            "and name its interpreter"
        ) from None
    if current_platform.device_type != launch.device:
        raise CannotStartError(
            f'engine.device is "{launch.device}", and the vLLM that is installed there computes on '
            f'"{current_platform.device_type}": change the key, or install another build'
        )
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(launch)))
    except TypeError as fault:  # of an option that it has not
        raise CannotStartError(f"engine.vllm.options: vLLM takes {fault}") from fault
    except (RuntimeError, ValueError, OSError, ImportError) as fault:
        raise CannotStartError(f"{type(fault).__name__}: {fault}") from fault
