"""One forward over a ragged batch and the paged KV."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from engine.attention.native import NativePagedAttention
from engine.attention.paged import AttentionContext, PagedAttention
from engine.attention.sourced import SourcedAttention, SourcedKernels
from engine.attention.tiles import TiledAttention, TileKernels, lay_out, lay_out_padded
from engine.batch import RaggedBatch, Span, pack
from engine.kernels.native import NativeOps
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.forward import Forward
from engine.model.graphs import Capture, Graphs
from engine.model.taps import Taps

Kernels = NativeOps | SourcedKernels | TileKernels


class Runner:
    """Runs models over one KV memory: the target, and views of it that draft."""

    def __init__(self, memory: KVMemory, kernels: Kernels | None = None) -> None:
        """kernels: for attention; None leaves it to torch."""
        self._memory = memory
        self._kernels = kernels
        self._graphs: Graphs | None = None
        self._padding = Span(_scrap_table(memory), 0, [0], 0)

    @property
    def can_capture(self) -> bool:
        """Whether attention depends on tensors alone. Torch's has a plan of the host's."""
        return self._kernels is not None and not isinstance(self._kernels, NativeOps | SourcedKernels)

    def capture(
        self, forward: Forward, capture: Capture, *, sizes: tuple[int, ...], most_blocks: int
    ) -> None:
        """Capture forward in these sizes; from then on steps of any forward are filled up to them and replayed.

        most_blocks: the block tables of one step have at most so many entries together, padding aside. Raises
        RuntimeError where something cannot be captured; then steps run as they are.
        """
        assert self._kernels is not None, "see can_capture"
        assert not isinstance(self._kernels, NativeOps | SourcedKernels), "see can_capture"
        self._graphs = Graphs(
            capture,
            partial(TiledAttention, self._kernels, self._memory),
            sizes=sizes,
            most_blocks=most_blocks + sizes[-1],
            device=self._memory.device,
        )
        try:
            for size in reversed(sizes):  # the largest first: the others fit into its scratch memory
                self.run(forward, self.pack([self._padding] * size))
        except RuntimeError:
            self._graphs = None
            raise

    def pack(self, spans: Sequence[Span]) -> RaggedBatch:
        """See engine.batch.pack. Fills the batch up to a captured size, if there is one."""
        rows = sum(len(span.tokens) for span in spans)
        padding = self._graphs.padding(rows) if self._graphs and rows else 0
        batch = pack([*spans, *[self._padding] * padding], self._memory.device)
        return replace(batch, padding=padding)

    def run(self, forward: Forward, batch: RaggedBatch, taps: Taps | None = None) -> Tensor:
        """Write the KV of every row and return the logits of the wanted ones, valid until the next run: [R, V].

        What the taps ask for is no part of a captured step: with them, steps run as they are.
        """
        if self._graphs and self._graphs.suits(batch) and not batch.has_trees and taps is None:
            return self._graphs.run(forward, batch, lay_out_padded(batch, self._memory.block_size))
        return forward(batch.tokens, batch.positions, self.attention(batch), batch.logit_rows, taps)

    def attention(self, batch: RaggedBatch) -> AttentionContext:
        """Over the memory, for one forward of this batch."""
        match self._kernels:
            case None:
                return PagedAttention(self._memory, batch)
            case SourcedKernels():
                return SourcedAttention(self._memory, batch)
            case NativeOps() as ops:
                return NativePagedAttention(ops, self._memory, batch)
            case _ if batch.has_trees or self._memory.begin:  # what tiles do not know
                return PagedAttention(self._memory, batch)
            case kernels:
                return TiledAttention(kernels, self._memory, lay_out(batch, self._memory.block_size))


def _scrap_table(memory: KVMemory) -> BlockTable:
    """A table that no sequence owns."""
    table = BlockTable(BlockPool(1, memory.block_size))
    table.reserve(1)
    table.blocks = [memory.scrap]
    return table
