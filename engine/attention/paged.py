"""The attention function that transformers' models call, over the paged KV.

Registered as `specd_paged` with `transformers.AttentionInterface`. No mask function is registered under that name,
so models pass no mask, and everything the function needs travels in one keyword argument, `specd`, through
`model.forward(**kwargs)`.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.attention.plan import Group, plan_attention
from engine.batch import RaggedBatch
from engine.kv.memory import KVMemory, LayerShape
from engine.model.support import UnsupportedModelError

NAME = "specd_paged"
# What models hand on: what is done here, and what does not change the result of a forward without mask and cache.
_UNDERSTOOD: Final = {
    "sliding_window",
    "softcap",
    "s_aux",
    "is_causal",
    "dropout",
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_router_logits",
}


class AttentionContext(Protocol):
    """What travels in the `specd` argument: attends one layer's rows. Valid for one forward."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: "Extras") -> Tensor:
        """query: [T, heads, dim]; key, value: [T, kv_heads, dim] -> [T, heads, value_dim]."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What a model's attention adds to the plain formula."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # [heads]


def attention_forward(  # noqa: PLR0917  transformers calls it so
    module: nn.Module,
    query: Tensor,  # [1, heads, T, dim]
    key: Tensor,  # [1, kv_heads, T, dim]
    value: Tensor,  # [1, kv_heads, T, value_dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    specd: AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The registered function. Returns ([1, T, heads, value_dim], None)."""
    reason = _unknown(specd, attention_mask, kwargs)
    if reason:
        raise UnsupportedModelError(f"{type(module).__name__} {reason}")
    assert specd is not None
    extras = Extras(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    return specd.attend(layer, q, k, v, extras)[None].contiguous(), None  # some models view it as [T, hidden]


def _unknown(specd: AttentionContext | None, mask: Tensor | None, extras: dict[str, Any]) -> str | None:
    """What a model asks of its attention function beyond what this one does, or None."""
    if specd is None:
        return "does not hand keyword arguments on to its attention function: the paged KV cannot reach it"
    if mask is not None:
        return "makes an attention mask of its own: this engine masks by position alone"
    if extras.get("is_causal") is False:
        return "looks at what comes after a token: this engine runs decoders"
    strange = [name for name, value in extras.items() if value is not None and name not in _UNDERSTOOD]
    if strange:
        return f"gives its attention function {', '.join(strange)}, which this engine would ignore"
    return None


def register() -> None:
    """Make `specd_paged` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, attention_forward)


class PagedAttention:
    """One forward over the paged KV: writes the new rows, then attends over each sequence's blocks. In torch."""

    def __init__(self, memory: KVMemory, batch: RaggedBatch) -> None:
        self._memory = memory
        self._slots = batch.slots
        self._plan = plan_attention(batch, memory.block_size)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        self._memory.write(layer, self._slots, key, value)
        padded = [attend_group(self._memory, layer, group, query, extras) for group in self._plan.groups]
        rows = padded[0] if len(padded) == 1 else torch.cat(padded)
        return rows if self._plan.unpad is None else rows.index_select(0, self._plan.unpad)


def attend_group(memory: KVMemory, layer: int, group: Group, query: Tensor, extras: Extras) -> Tensor:
    """[T, heads, dim] -> [B * R, heads, value_dim]. The query heads of a key head are rows: one product serves them."""
    keys, values = memory.gather(layer, group.blocks)  # [B, kv_heads, S, dim]
    batch, kv_heads = keys.shape[:2]
    share = query.shape[1] // kv_heads  # query heads per key head
    rows = query if group.rows is None else query.index_select(0, group.rows)  # [B * R, heads, dim]
    rows = rows.reshape(batch, group.depth, kv_heads, share, -1).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, share * group.depth, -1)
    mask = group.mask(extras.window, share, memory.block_size, query.dtype, memory.begin)
    out = attend_rows(rows, keys, values, mask, extras)
    out = out.view(batch, kv_heads, share, group.depth, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(batch * group.depth, query.shape[1], -1)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, extras: Extras) -> Tensor:
    """[B, kv_heads, share * R, dim] over [B, kv_heads, S, dim] -> [B, kv_heads, share * R, value_dim].

    mask: additive, [B, 1, share * R, S].
    """
    if extras.softcap is None and extras.sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=extras.scaling)
    scores = (query @ key.transpose(-1, -2)).float() * extras.scaling
    if extras.softcap is not None:
        scores = (scores / extras.softcap).tanh() * extras.softcap
    scores = scores + mask
    if extras.sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        kv_heads, share = key.shape[1], extras.sinks.shape[0] // key.shape[1]
        depth = query.shape[2] // share
        sinks = extras.sinks.float().view(1, kv_heads, share, 1).repeat_interleave(depth, dim=2)
        sinks = sinks.expand(query.shape[0], -1, -1, -1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value


class Probe:
    """Notes what each layer would store, what it asks for, and how often it calls."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.extras: dict[int, Extras] = {}
        self.calls: dict[int, int] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext. Returns zeros: nobody looks at the values."""
        self.extras[layer] = extras
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.calls[layer] = self.calls.get(layer, 0) + 1
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
