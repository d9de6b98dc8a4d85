"""What comes before the first step: a model and its drafts are loaded, steps are captured, costs are measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from engine.api import Launch, Room
from engine.available import available_bytes, mib, weights_shortage
from engine.budget import CannotServeError, budget, require, row_bytes
from engine.core import Engine
from engine.draft.registry import load_parts
from engine.measure import GoOn, begin_with, calibrate, calibrate_new, in_words
from engine.model.device import unavailable_reason
from engine.model.graphs import Capture, CudaCapture
from engine.model.loader import load
from policies.load import most_rows

Say = Callable[[str], None]

_WORTH_MEASURING: Final = (
    16 << 20
)  # bytes of weights: the steps of smaller models cost nothing but what is around them


def start(launch: Launch, say: Say) -> Engine:
    """Load the model and make an engine. Raises UnsupportedModelError, CannotServeError or OSError."""
    reason = unavailable_reason(launch.device)
    if reason:
        raise CannotServeError(reason)
    path = Path(launch.model_path)
    cache = Path(launch.cache_dir) if launch.cache_dir else None
    device, dtype = torch.device(launch.device), getattr(torch, launch.dtype)
    require(weights_shortage(path, available_bytes(device)))
    loaded = load(path, dtype, device, say, cache=cache, quantization=launch.quantization)
    parts = load_parts(launch.draft, loaded, say)
    needs, available = budget(launch, loaded, parts), available_bytes(device)
    say(f"memory: {needs.text()}; {mib(available)} are available beside the weights")
    require(needs.shortage(available))
    file = path / "tokenizer.json"
    engine = Engine(launch, loaded, Tokenizer.from_file(str(file)) if file.exists() else None, parts)
    rows = most_rows(launch.policy, launch.max_running)
    engine.room = Room(rows, row_bytes(loaded), available - needs.beside_weights)
    if launch.device == "cuda" and launch.cuda_graphs:
        capture(engine, CudaCapture(), say)
    if launch.costs is not None:
        begin_with(engine, launch.costs)
        say(f"by the profile, {in_words(launch.costs)}")
    elif worth_measuring(engine):
        calibrate(engine, say)
    return engine


def capture(engine: Engine, how: Capture, say: Say) -> None:
    """Capture small steps; where that fails, all steps run as they are."""
    if not engine.can_capture:
        say("no CUDA graphs: without Triton kernels the attention of a step cannot be captured")
        return
    try:
        sizes = engine.capture(how)
    except RuntimeError as fault:
        say(f"no CUDA graphs: {fault}")
    else:
        say(f"captured steps of up to {sizes[-1]} rows in {len(sizes)} sizes")


def worth_measuring(engine: Engine) -> bool:
    """Whether its steps cost something beside what is around them."""
    return engine.memory["weights"] >= _WORTH_MEASURING


def rest(engine: Engine, say: Say, go_on: GoOn) -> None:
    """There is nothing to do: time for what would disturb a step. A leaked block would else only show as slow
    admission. go_on: see engine.measure; what is broken off is tried again at the next rest.
    """
    engine.check_integrity()
    if engine.unmeasured and worth_measuring(engine):
        calibrate_new(engine, say, go_on)
