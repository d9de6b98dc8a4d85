"""CUDA graphs of small steps.

A step of a few rows is hundreds of kernels of some microseconds each, and the host is slower in launching them than
the GPU in running them. A graph launches them all at once. It fixes every shape and every address, so

* a step is filled up to the next captured size with rows that write to the scrap block and are dropped;
* its inputs are copied into tensors that stay where they are;
* what depends on the block tables is data, not shape: see engine.attention.tiles.

Larger steps, long prompt chunks among them, are worth their launches and run as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.attention.paged import AttentionContext
from engine.attention.tiles import Columns, Tiles
from engine.batch import RaggedBatch
from engine.model.forward import Forward

_LARGEST: Final = 512

Run = Callable[[], Tensor]


class Capture(Protocol):
    """Records what a function does on the device."""

    def __call__(self, run: Run) -> Run:
        """A function that does it again, with what the inputs hold by then, and returns the same tensor each time."""


def sizes_up_to(rows: int) -> tuple[int, ...]:
    """Sizes to capture for steps of at most so many rows: 1, 2, 3, 4, 6, 8, 12, ..., so that no step grows by half."""
    sizes = sorted({base << i for base in (2, 3) for i in range(_LARGEST.bit_length())} | {1})
    last = next(i for i, size in enumerate(sizes) if size >= min(rows, _LARGEST))
    return tuple(sizes[: last + 1])


class Graphs:
    """The captured sizes of every forward, over inputs that all of them share."""

    def __init__(
        self,
        capture: Capture,
        attention: Callable[[Tiles], AttentionContext],
        *,
        sizes: tuple[int, ...],
        most_blocks: int,
        device: torch.device,
    ) -> None:
        """most_blocks: the block tables of one step have at most so many entries together."""
        self.sizes = sizes
        self._capture = capture
        self._attention = attention
        lengths = [most_blocks if name == "blocks" else sizes[-1] for name in Columns._fields]
        self._tokens = torch.zeros(sizes[-1], dtype=torch.int64, device=device)
        self._columns = Columns(*(torch.zeros(n, dtype=torch.int64, device=device) for n in lengths))
        self._every_row = torch.arange(sizes[-1], device=device)
        self._logits: Tensor | None = (
            None  # [largest size, V]: one for all, since each graph's own would add up
        )
        self._captured: WeakKeyDictionary[Forward, dict[int, Run]] = WeakKeyDictionary()

    def padding(self, rows: int) -> int:
        """Rows that are missing to the next size; 0 where there is none."""
        return next((size - rows for size in self.sizes if size >= rows), 0)

    def suits(self, batch: RaggedBatch) -> bool:
        """Whether a batch has a captured size."""
        return batch.rows in self.sizes

    def run(self, forward: Forward, batch: RaggedBatch, tiles: Tiles) -> Tensor:
        """What forward would return for the wanted rows, until the next run. tiles: as `lay_out_padded` makes them.

        A size that this forward has not run yet is captured first.
        """
        given = [batch.tokens[0], *tiles.columns]
        held = [self._tokens, *self._columns]
        torch._foreach_copy_([mine[: len(new)] for mine, new in zip(held, given, strict=True)], given)
        sizes = self._captured.setdefault(forward, {})
        if batch.rows not in sizes:
            sizes[batch.rows] = self._capture(self._fixed(forward, batch.rows, tiles))
        logits = sizes[batch.rows]()  # of every row: which ones are wanted changes from step to step
        wanted = len(batch.logit_rows)
        return logits[:wanted] if wanted == batch.real_rows else logits.index_select(0, batch.logit_rows)

    def _fixed(self, forward: Forward, rows: int, like: Tiles) -> Run:
        """A forward of so many rows over the shared inputs, whatever they hold."""
        *by_row, blocks = self._columns
        tiles = replace(like, columns=Columns._make([*(column[:rows] for column in by_row), blocks]))
        tokens, positions = self._tokens[:rows][None], tiles.columns.positions[None]
        every_row = self._every_row[:rows]

        def run() -> Tensor:
            logits = forward(tokens, positions, self._attention(tiles), every_row)
            if self._logits is None:
                self._logits = logits.new_empty(self.sizes[-1], logits.shape[1])
            return self._logits[:rows].copy_(logits)

        return run


class CudaCapture:
    """Captures into CUDA graphs. They share their scratch memory, since no two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """See Capture. Runs it once beforehand: kernels are compiled and libraries set up outside of the graph."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
