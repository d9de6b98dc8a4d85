"""Attention of encoder-decoder models over the paged KV, in torch.

The table of a text holds what the encoder made of its prompt, and behind it what the decoder makes of the text. Both
are a key and a value of each place in every layer of the decoder:

    places     0 ............... source ............... end
               of cross attention   of self attention:
               seen by every row    the start token's, then the text's

So prompts and texts share one pool: both are counted by it, the texts of a request hold its source together, and a
rejected draft is rolled back like any other. An encoder sees its whole prompt at once: a span covers the source whole
or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.plan import PREFILL_ROWS, offsets
from engine.batch import RaggedBatch, Span
from engine.draft.shape import sights
from engine.kv.memory import KVMemory
from engine.transfer import send


class SourcedKernels:
    """Of a loaded model: says that its rows attend as this module does it."""


class Source(NamedTuple):
    """A prompt to encode in this forward."""

    rows: slice  # of the packed rows
    slots: Tensor  # [S] int64


@dataclass(frozen=True, slots=True)
class _Text:
    """A span's rows of the decoder."""

    span: Span
    first: int  # among the decoder's rows
    start: int  # place of its first row in the table

    @property
    def depth(self) -> int:
        """Rows."""
        return self.span.end - self.start

    @property
    def keys(self) -> range:
        """Places of the decoder's own keys."""
        return range(self.span.table.source, self.span.end)

    def distances(self) -> Tensor:
        """[rows, keys] int64: how far behind its row a key is; negative where the row does not see it."""
        own = self.depth
        at = torch.tensor(self.span.positions)[-own:]  # of the rows; siblings in a tree share theirs
        keys = torch.cat([torch.arange(self.span.table.source, self.start), at])
        found = at[:, None] - keys
        if self.span.parents is not None:
            seen = [[row >> key & 1 for key in range(own)] for row in sights(self.span.parents)]
            found[:, -own:].masked_fill_(~torch.tensor(seen, dtype=torch.bool), -1)
        return found


@dataclass(frozen=True, slots=True)
class _Group:
    """Texts that attend in one call: B of them, rows padded to R, own keys to S, those of their sources to P.

    A padded row repeats its text's first one and is dropped; a padded key is one of the text's own, masked.
    """

    rows: Tensor  # [B * R] int64, of the decoder's rows
    keys: Tensor  # [B * S] int64, slots
    sources: Tensor  # [B * P] int64, slots
    distances: Tensor  # [B, R, S]
    within: Tensor | None  # [B, 1, 1, P] bool: what is no padding of a source; None where all is
    masks: dict[int, Tensor] = field(default_factory=dict)  # by bias; layers that share one share its mask

    @property
    def size(self) -> int:
        """B."""
        return self.distances.shape[0]

    def mask(self, bias: Tensor) -> Tensor:
        """[heads, D] of each distance, the last one for all beyond -> [B, heads, R, S] additive."""
        if id(bias) not in self.masks:
            mask = bias[:, self.distances.clamp(0, bias.shape[1] - 1)].transpose(0, 1)
            self.masks[id(bias)] = mask.masked_fill(self.distances[:, None] < 0, -torch.inf)
        return self.masks[id(bias)]


class SourcedAttention:
    """One forward's. `rows` are the packed rows that the decoder computes, `sources` the prompts to encode before."""

    def __init__(self, memory: KVMemory, batch: RaggedBatch) -> None:
        self._memory = memory
        self.sources: list[Source] = []
        texts: list[_Text] = []
        rows: list[int] = []
        for span, offset in zip(batch.spans, offsets(batch.spans), strict=True):
            encoded = max(span.table.source - span.start, 0)
            if encoded:
                assert span.start == 0, "an encoder sees its whole prompt at once"
                assert span.end >= span.table.source, "an encoder sees its whole prompt at once"
                own = slice(offset, offset + encoded)
                self.sources.append(Source(own, batch.slots[own]))
            if encoded < len(span.tokens):
                texts.append(_Text(span, len(rows), span.start + encoded))
                rows += range(offset + encoded, offset + len(span.tokens))
        device = batch.slots.device
        self.rows = send(rows, device, torch.int64)  # [D]
        self._slots = batch.slots[self.rows]
        together = _together(texts)
        self._groups = [_group(each, device) for each in together]
        self._unpad = send(_unpadded(together), device, torch.int64)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: object) -> Tensor:
        """No part of an encoder-decoder model attends as decoder-only ones do."""
        raise NotImplementedError

    def write_source(self, layer: int, source: Source, key: Tensor, value: Tensor) -> None:
        """Keep what a layer's cross attention will look at. key, value: [S, heads, dim]."""
        self._memory.write(layer, source.slots, key, value)

    def attend_text(self, layer: int, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Self attention. query, key, value: [D, heads, dim]; bias: [heads, distances] -> [D, heads * dim]."""
        self._memory.write(layer, self._slots, key, value)
        return self._attend(layer, query, [(g, g.keys, g.mask(bias)) for g in self._groups])

    def attend_source(self, layer: int, query: Tensor) -> Tensor:
        """Cross attention. [D, heads, dim] -> [D, heads * dim]."""
        return self._attend(layer, query, [(g, g.sources, g.within) for g in self._groups])

    def _attend(
        self, layer: int, query: Tensor, groups: Sequence[tuple[_Group, Tensor, Tensor | None]]
    ) -> Tensor:
        padded = [
            _attend_group(self._memory, layer, group.size, query[group.rows], slots, mask)
            for group, slots, mask in groups
        ]
        return torch.cat(padded)[self._unpad]


def _attend_group(  # noqa: PLR0917
    memory: KVMemory, layer: int, size: int, query: Tensor, slots: Tensor, mask: Tensor | None
) -> Tensor:
    """query: [B * R, heads, dim]; slots: [B * S] -> [B * R, heads * dim]."""
    keys, values = (
        _by_text(store[layer].index_select(0, slots), size) for store in (memory.keys, memory.values)
    )
    out = F.scaled_dot_product_attention(_by_text(query, size), keys, values, attn_mask=mask, scale=1.0)
    return out.transpose(1, 2).reshape(len(query), -1)


def _by_text(rows: Tensor, size: int) -> Tensor:
    """[B * R, heads, dim] -> [B, heads, R, dim]."""
    return rows.view(size, -1, *rows.shape[1:]).transpose(1, 2)


def _together(texts: Sequence[_Text]) -> list[list[_Text]]:
    """Many rows attend alone, few of all the others together."""
    short = [text for text in texts if text.depth <= PREFILL_ROWS]
    return [[text] for text in texts if text.depth > PREFILL_ROWS] + ([short] if short else [])


def _unpadded(groups: Sequence[Sequence[_Text]]) -> list[int]:
    """Each row's place among the groups' padded rows, one group after another."""
    places: dict[int, int] = {}
    base = 0
    for texts in groups:
        depth = max(text.depth for text in texts)
        for text in texts:
            places |= {text.first + row: base + row for row in range(text.depth)}
            base += depth
    return [places[row] for row in range(len(places))]


def _group(texts: Sequence[_Text], device: torch.device) -> _Group:
    depth = max(text.depth for text in texts)  # R
    keys = max(len(text.keys) for text in texts)  # S
    lengths = [text.span.table.source for text in texts]
    longest = max(lengths)  # P
    rows, own, sources = [], [], []
    distances = torch.full((len(texts), depth, keys), -1)
    for i, text in enumerate(texts):
        rows += _padded(range(text.first, text.first + text.depth), depth)
        own += _padded(text.span.table.slots(text.keys.start, text.keys.stop), keys)
        sources += _padded(text.span.table.slots(0, lengths[i]), longest)
        found = text.distances()
        distances[i, : text.depth, : len(text.keys)] = found
        distances[i, text.depth :, : len(text.keys)] = found[0]
    within = None
    if min(lengths) < longest:
        within = send((torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None], device)
    return _Group(
        rows=send(rows, device, torch.int64),
        keys=send(own, device, torch.int64),
        sources=send(sources, device, torch.int64),
        distances=send(distances, device),
        within=within,
    )


def _padded(places: Sequence[int], length: int) -> list[int]:
    return [*places, *[places[0]] * (length - len(places))]
