"""`make bench-gpu`: is the engine on this GPU the engine on the CPU, and how fast is it, with CUDA graphs and without?

Three checks with the demo model, then tokens per second; some minutes in all. Exits 1 where a check fails, 2 without a
GPU.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import Ours, Prompts, encode
from engine.api import DraftKind, DraftSettings
from engine.batch import Span
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.device import unavailable_reason
from engine.model.loader import load
from engine.model.runner import Runner
from specd.bench.prompts import prompts
from specd.models.resolve import resolve_target

_TOKENS: Final = 32  # of each text that is compared
_TOLERANCE: Final = 6e-2  # of a row's spread: rounding in bfloat16
_RUNNING: Final = (1, 4, 16, 32)


def main() -> int:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument(
        "--tokens", type=int, default=128, help="new tokens per prompt when measured (default 128)"
    )
    args = parser.parse_args()
    reason = unavailable_reason("cuda")
    if reason:
        print(f"make bench-gpu: {reason}", file=sys.stderr)  # noqa: T201  the answer of a command
        return 2
    console = Console()
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    path = resolve_target("demo")
    mixed = encode(path, [prompt.text for prompt in islice(prompts("mixed"), max(_RUNNING))])
    right = True
    for what, passed in _checks(path, mixed[:4]):
        console.print(f"{'the same' if passed else 'DIFFERENT'}: {what}")
        right &= passed
    console.print(_speeds(path, mixed, args.tokens))
    return 0 if right else 1


def _checks(path: Path, few: Prompts) -> Iterator[tuple[str, bool]]:
    """Each claim, and whether it holds."""
    expected = _texts(path, few, device="cpu", kind="none")
    for kind in ("none", "ngram", "layer-skip"):
        for graphs in (False, True):
            said = _texts(path, few, device="cuda", kind=kind, cuda_graphs=graphs)
            name = "with graphs" if graphs else "without graphs"
            yield (
                f"greedy fp32 texts of CUDA, draft {kind}, {name}, and of the CPU's plain decoding",
                said == expected,
            )
    reference = _logits(path, torch.float32, torch.device("cpu"), few[0])
    rounded = _logits(path, torch.bfloat16, torch.device("cuda"), few[0])
    spread = reference.amax(-1) - reference.amin(-1)
    error = float(((rounded - reference).abs().amax(-1) / spread).max())
    yield f"bf16 logits of CUDA and fp32 ones of the CPU to {error:.2g} of their spread", error <= _TOLERANCE


def _texts(
    path: Path, few: Prompts, *, device: str, kind: DraftKind, cuda_graphs: bool = False
) -> list[list[int]]:
    """Greedy texts, all at once, in fp32."""
    ours = Ours(
        path,
        None,
        device=device,
        dtype="float32",
        draft=DraftSettings(kinds=(kind,)),
        cuda_graphs=cuda_graphs,
    )
    if kind != "none":
        ours.adaptive()
    return ours.texts(few, _TOKENS)


def _logits(path: Path, dtype: torch.dtype, device: torch.device, prompt: list[int]) -> Tensor:
    """Of every row of a prompt: [T, V] float32, on the CPU."""
    loaded = load(path, dtype, device, lambda _: None)
    pool = BlockPool(-(-len(prompt) // 16), 16)
    runner = Runner(KVMemory(loaded.shapes, pool.total, 16, dtype, device), loaded.kernels)
    table = BlockTable(pool)
    table.reserve(len(prompt))
    return runner.run(loaded.forward, runner.pack([Span(table, 0, prompt, len(prompt))])).float().cpu()


def _speeds(path: Path, mixed: Prompts, tokens: int) -> Table:
    table = Table("running", "mode", "without graphs", "with graphs", title="tokens/s, bf16, greedy")
    engines = [Ours(path, None, device="cuda", cuda_graphs=graphs) for graphs in (False, True)]
    for running in _RUNNING:
        for mode in ("plain", "prompt lookup"):
            rates = []
            for ours in engines:
                (ours.plain if mode == "plain" else ours.adaptive)()
                ours.seconds(mixed[:running], 8)  # kernels are compiled when they are first needed
                rates.append(running * tokens / ours.seconds(mixed[:running], tokens))
            table.add_row(str(running), mode, *(f"{rate:.0f}" for rate in rates))
    return table


if __name__ == "__main__":
    sys.exit(main())
