"""One forward of a transformers causal LM over a ragged batch."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.paged import AttentionContext, PagedAttention
from engine.attention.plan import plan_attention
from engine.batch import RaggedBatch
from engine.kv.memory import KVMemory


class Runner:
    """Runs the target, or a view of it with some layers left out, over the shared KV."""

    def __init__(self, model: Any, memory: KVMemory) -> None:
        self._model = model
        self._memory = memory

    def forward(self, batch: RaggedBatch, *, model: Any = None) -> Tensor:
        """Write the KV of every row and return the logits of the wanted ones: [R, V]."""
        plan = plan_attention(batch, self._memory.block_size)
        attention = PagedAttention(self._memory, batch.slots, plan)
        return call(model or self._model, batch.tokens, batch.positions, attention, batch.logit_rows)

    def without_layers(self, skip: tuple[int, ...]) -> Any:
        """A view of the model in which these layers pass their input on. Shares all weights."""
        return without_layers(self._model, skip)


@torch.inference_mode()
def call(
    model: Any, tokens: Tensor, positions: Tensor, attention: AttentionContext, logit_rows: Tensor
) -> Tensor:
    """tokens, positions: [1, T]; logit_rows: [R] -> [R, V]."""
    out = model(
        input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=logit_rows, specd=attention
    )
    return out.logits[0]  # type: ignore[no-any-return]


class _Skipped(nn.Module):
    """In place of a decoder layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if hasattr(layer, "attention_type"):  # some models look up masks and angles by it
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The input."""
        del args, kwargs
        return hidden_states


def decoder_layers(model: Any) -> nn.ModuleList:
    """The decoder layers of a causal LM, in order."""
    wanted = model.config.get_text_config().num_hidden_layers
    base = model.base_model
    for module in base.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise LookupError(f"{type(model).__name__} has no list of {wanted} decoder layers")


def without_layers(model: Any, skip: tuple[int, ...]) -> Any:
    """A copy of the module tree around the decoder layers, with some of them replaced; weights are shared."""
    layers = decoder_layers(model)
    kept = nn.ModuleList(_Skipped(layer) if i in skip else layer for i, layer in enumerate(layers))
    return _replace(model, layers, kept)


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    if module is old:
        return new
    children = {name: _replace(child, old, new) for name, child in module.named_children()}
    if all(children[name] is child for name, child in module.named_children()):
        return module
    clone = copy.copy(module)
    clone._modules = {**module._modules, **children}  # noqa: SLF001
    return clone
