"""How often the target without some of its layers says what all of it says, by position in a draft.

All rounds of a text are looked at together. In the round that begins at row t, the draft sees the target's keys before
t, as `engine.draft.layer_skip` does, and its own of t and of what it has drafted since:

    keys        target's 0 1 2 3 | own, level 0  0 1 2 3 | own, level 1  0 1 2 3
    round 2              o o . . |               . . o . |               . . o .

So a level costs one forward over the text, and what is counted is what rounds would have examined and accepted, had one
begun at every token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.paged import Extras, attend_rows
from engine.model.forward import Forward


class Excerpt(NamedTuple):
    """A text, and from which token on what follows is the target's own."""

    tokens: Sequence[int]
    start: int


class Counts(NamedTuple):
    """By position in the draft; of each, those that came so far."""

    examined: list[int]
    accepted: list[int]

    @classmethod
    def total(cls, counts: Sequence["Counts"]) -> "Counts":
        """Of several texts together."""
        examined = [sum(column) for column in zip(*(each.examined for each in counts), strict=True)]
        accepted = [sum(column) for column in zip(*(each.accepted for each in counts), strict=True)]
        return cls(examined, accepted)

    @property
    def acceptance(self) -> list[float]:
        """Conditional, by position."""
        return [a / max(e, 1) for e, a in zip(self.examined, self.accepted, strict=True)]


class Heard:
    """A text as the target reads it: keys, values, and what it would say after each token from `start` - 1 on."""

    def __init__(self, target: Forward, excerpt: Excerpt, device: torch.device) -> None:
        self.tokens = torch.tensor(excerpt.tokens, device=device)
        self.rows = torch.arange(
            excerpt.start - 1, len(self.tokens) - 1, device=device
        )  # [R]: where rounds begin
        self.keys: dict[int, Tensor] = {}  # [T, kv_heads, dim]
        self.values: dict[int, Tensor] = {}
        places = torch.arange(len(self.tokens), device=device)
        self._distance = places[:, None] - places  # [T, T]
        self.said = target(self.tokens[None], places[None], self, self.rows).argmax(dim=-1)  # [R]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        self.keys[layer], self.values[layer] = key, value
        return _attend(query, key, value, self._distance, extras)


class _Rounds:
    """Attention of one level after another, of all rounds of a text."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._own: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by layer, keys and values by level
        self._distance = torch.empty(0)

    def begin(self, level: int) -> None:
        """The next forward's rows stand so many tokens after where their rounds began."""
        heard = self._heard
        places = torch.arange(len(heard.tokens), device=heard.rows.device)
        before = heard.rows[:, None] - places  # [R, T]
        own = torch.eye(len(heard.rows), device=places.device, dtype=torch.bool)
        drawn = [torch.where(own, level - earlier, -1) for earlier in range(level + 1)]
        self._distance = torch.cat([torch.where(before > 0, before + level, -1), *drawn], dim=1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        own = self._own.setdefault(layer, [])
        own.append((key, value))
        keys = torch.cat([self._heard.keys[layer], *(k for k, _ in own)])
        values = torch.cat([self._heard.values[layer], *(v for _, v in own)])
        return _attend(query, keys, values, self._distance, extras)


def count(draft: Forward, heard: Heard, levels: int) -> Counts:
    """What would be examined and accepted of greedy drafts of so many tokens, one from each of the text's rows."""
    rounds, counts = _Rounds(heard), Counts([], [])
    tokens, rows = heard.tokens[heard.rows], torch.arange(len(heard.rows), device=heard.rows.device)
    alive = torch.ones_like(heard.rows, dtype=torch.bool)
    for level in range(levels):
        rounds.begin(level)
        tokens = draft(tokens[None], (heard.rows + level)[None], rounds, rows).argmax(dim=-1)
        alive &= rows + level < len(rows)
        there = (rows + level).clamp(max=len(rows) - 1)
        counts.examined.append(int(alive.sum()))
        alive &= tokens == heard.said[there]
        counts.accepted.append(int(alive.sum()))
        alive &= tokens == heard.tokens[heard.rows[there] + 1]  # beyond, the text is another one
    return counts


def _attend(query: Tensor, key: Tensor, value: Tensor, distance: Tensor, extras: Extras) -> Tensor:
    """[R, heads, dim] over [S, kv_heads, dim] -> [R, heads, value_dim]. distance: [R, S], below 0 for what is not seen.

    As everywhere, a window of w lets a row see w positions, its own included.
    """
    rows, heads, _ = query.shape
    kv_heads = key.shape[1]
    share = heads // kv_heads
    seen = distance >= 0 if extras.window is None else (distance >= 0) & (distance < extras.window)
    mask = torch.zeros(seen.shape, dtype=query.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    packed = query.view(rows, kv_heads, share, -1).permute(1, 2, 0, 3).reshape(1, kv_heads, share * rows, -1)
    out = attend_rows(
        packed,
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        mask.repeat(share, 1)[None, None],
        extras,
    )
    out = out.view(kv_heads, share, rows, -1).permute(2, 0, 1, 3)
    return out.reshape(rows, heads, -1)
