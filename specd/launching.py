"""From a config and the models that it names to what an engine is started with."""

import sys
from importlib import resources
from pathlib import Path
from typing import Any

from engine.api import DraftSettings, Launch
from policies.cost import StepCosts
from policies.settings import PolicySettings
from specd.config.schema import Config, EngineSection
from specd.config.target import TargetSection
from specd.models.cache import cache_dir


def engine_command(engine: EngineSection) -> tuple[str, ...]:
    """Of the engine process, but for its socket."""
    if engine.backend == "vllm-serve":
        return (sys.executable, "-m", "engine.vllm.beside")
    if engine.backend == "vllm":  # by its file: the other interpreter need not have specd installed
        return (engine.vllm.python or sys.executable, str(resources.files("engine") / "vllm"))
    return (sys.executable, "-m", "engine.worker")


def launch_of(
    config: Config,
    target: TargetSection,
    path: Path,
    draft: DraftSettings,
    policy: PolicySettings,
    *,
    costs: StepCosts | None,
) -> Launch:
    """target: what is at `path`. costs: what a profile says of them; None has the engine measure."""
    engine = config.engine
    return Launch(
        model_path=str(path),
        dtype=target.number_format(engine.device),
        quantization=target.quantization,
        device=engine.device,
        cuda_graphs=engine.cuda_graphs,
        threads=engine.threads,
        max_running=engine.max_running,
        max_batch_tokens=engine.max_batch_tokens,
        rows_beside_decodes=engine.rows_beside_decodes,
        max_context=engine.max_context,
        kv_bytes=engine.kv_mib << 20,
        block_size=engine.block_size,
        prefix_cache=engine.prefix_cache,
        cache_dir=str(cache_dir() / "kernels"),
        draft=draft,
        policy=policy,
        verification=engine.verification,
        costs=costs,
        vllm_options=_vllm_options(engine),
    )


def _vllm_options(engine: EngineSection) -> dict[str, Any]:
    if engine.backend == "vllm-serve":
        return {"socket": str(engine.vllm.socket)}
    return engine.vllm.launch_options() if engine.backend == "vllm" else {}
