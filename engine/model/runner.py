"""One forward over a ragged batch and the paged KV."""

from torch import Tensor

from engine.attention.paged import PagedAttention
from engine.attention.plan import plan_attention
from engine.batch import RaggedBatch
from engine.kv.memory import KVMemory
from engine.model.forward import Forward


class Runner:
    """Runs models over one KV memory: the target, and views of it that draft."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory

    def run(self, forward: Forward, batch: RaggedBatch) -> Tensor:
        """Write the KV of every row and return the logits of the wanted ones: [R, V]."""
        plan = plan_attention(batch, self._memory.block_size)
        attention = PagedAttention(self._memory, batch.slots, plan)
        return forward(batch.tokens, batch.positions, attention, batch.logit_rows)
