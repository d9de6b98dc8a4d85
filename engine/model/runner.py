"""One forward over a ragged batch and the paged KV."""

from torch import Tensor

from engine.attention.native import NativePagedAttention
from engine.attention.paged import AttentionContext, PagedAttention
from engine.batch import RaggedBatch
from engine.kernels.native import NativeOps
from engine.kv.memory import KVMemory
from engine.model.forward import Forward


class Runner:
    """Runs models over one KV memory: the target, and views of it that draft."""

    def __init__(self, memory: KVMemory, native: NativeOps | None = None) -> None:
        """native: kernels for attention; None leaves it to torch."""
        self._memory = memory
        self._native = native

    def run(self, forward: Forward, batch: RaggedBatch) -> Tensor:
        """Write the KV of every row and return the logits of the wanted ones: [R, V]."""
        return forward(batch.tokens, batch.positions, self._attention(batch), batch.logit_rows)

    def _attention(self, batch: RaggedBatch) -> AttentionContext:
        if self._native is None:
            return PagedAttention(self._memory, batch)
        return NativePagedAttention(self._native, self._memory, batch)
