"""`[engine.vllm]`: vLLM in the place of specd's own engine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, PlainSerializer

from engine.api import DraftKind
from engine.vllm.options import unsupported_reason
from specd.config.section import Section, restart

if TYPE_CHECKING:
    from specd.config.schema import Config


_NO_SOCKET: Final = (
    'engine.backend is "vllm-serve", and nothing says where vLLM is met: name a path with engine.vllm.socket, and give '
    "the server the same as SPECD_VLLM_SOCKET"
)


_NO_LOOKUP: Final = (
    'drift.on_canary_fail is "ngram", and vLLM has one proposer, which it takes at its start: take "off", which has '
    'nobody draft, or model.draft.kind = "ngram"'
)
_AT_START: Final[Mapping[DraftKind, frozenset[str]]] = {
    "ngram": frozenset({"model.draft.ngram_min", "model.draft.ngram_max"}),
    "suffix": frozenset({"model.draft.suffix_across"}),
}
"""Keys that make another draft, by its kind, and that a running vLLM cannot take. specd's own engine can."""


def _table(value: Any) -> Any:
    """A table, or JSON of one, as an environment variable has it."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("is neither a table nor JSON of one: write options = { seed = 1 }") from None
    return value


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)


# Shown and compared as one value, since the keys are vLLM's and not ours.
Options = Annotated[dict[str, Any], BeforeValidator(_table), PlainSerializer(_as_json, return_type=str)]


class VllmSection(Section):
    """With engine.backend = "vllm": docs/vllm.md."""

    python: str = restart("", "interpreter of the environment with vLLM; empty takes the daemon's own")
    tensor_parallel_size: int = restart(1, "devices that share each layer", ge=1)
    pipeline_parallel_size: int = restart(1, "groups of devices that have the layers one after another", ge=1)
    distributed_executor_backend: Literal["auto", "uni", "mp", "ray", "external_launcher"] = restart(
        "auto", "how its workers are started; auto leaves it to vLLM"
    )
    gpu_memory_utilization: float | None = restart(
        None, "share of each device's memory, in the place of engine.kv_mib", gt=0, le=1
    )
    enforce_eager: bool = restart(False, "compile nothing at the start, which takes a minute, and run slower")
    socket: Path | None = restart(
        None,
        "backend \"vllm-serve\": where vLLM's scheduler meets the daemon, the server's SPECD_VLLM_SOCKET",
    )
    options: Options = restart({}, "further options of vLLM, by the names that its engine arguments have")

    def launch_options(self) -> dict[str, Any]:
        """As the engine process hands them to vLLM."""
        named = self.model_dump(exclude={"python", "options", "socket"}, exclude_defaults=True)
        return named | self.options


def vllm_fault(config: "Config") -> str | None:
    """What a config asks of vLLM that it cannot do, or None."""
    if config.policy.profile is not None:
        return (
            f'policy.profile was measured with specd\'s own engine, and engine.backend is "{config.engine.backend}": '
            "leave it out, costs are learned as it serves"
        )
    target, vllm = config.model.target, config.engine.vllm
    if config.engine.backend == "vllm-serve":
        return _NO_SOCKET if vllm.socket is None else None
    if config.drift.on_canary_fail == "ngram" and not {"ngram", "none"}.issuperset(config.drafting.kinds):
        return _NO_LOOKUP
    return unsupported_reason(config.model.draft.kinds, target.quantization, vllm.options)


def taken_at_start(config: "Config") -> frozenset[str]:
    """Keys that with this engine take a restart, beyond those that always do."""
    if config.engine.backend != "vllm":
        return frozenset()
    return frozenset().union(*(_AT_START.get(kind, frozenset()) for kind in config.drafting.kinds))
