"""An EAGLE-3 head as it is trained: dense, over whole texts, several steps of its own output at once.

Row i of a text has the target's hidden states at token i and the token after it, and guesses the token after that:

    step 0   row i:  fc(aux[i]),   x[i + 1]  ->  law of x[i + 2]
    step s   row i:  the head's own output of step s - 1 at row i - 1,  x[i + 1]  ->  the same law

so a round that begins at row r plays step s at row r + s (training-time test, arXiv 2503.01840). In step s row i sees,
for each position, the one key that it would see in such a round (s = 2 here):

    rows of    step 0     1     2
               o o o      o     o
               ... i-2    i-1   i

The module's names are those of the `speculators` layout.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.train.guess import Guess


class Sizes(NamedTuple):
    """Of the target, the head has the same."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    theta: float
    aux: int
    draft_vocabulary: int


class RMSNorm(nn.Module):
    """Scaled to mean square 1, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self._eps)


class _Keys(NamedTuple):
    """Of one step's rows: [B, kv_heads, L, dim] each."""

    key: Tensor
    value: Tensor


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        wide, dim = 2 * sizes.hidden, sizes.head_dim
        self.q_proj = nn.Linear(wide, sizes.heads * dim, bias=False)
        self.k_proj = nn.Linear(wide, sizes.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(wide, sizes.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(sizes.heads * dim, sizes.hidden, bias=False)
        self._dim = dim

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], earlier: list[_Keys]) -> Tensor:
        """[B, L, 2 H] -> [B, L, H]. Appends this step's keys to `earlier`, one entry for each step."""
        query = _rotated(self._heads(self.q_proj(x)), angles)
        earlier.append(_Keys(_rotated(self._heads(self.k_proj(x)), angles), self._heads(self.v_proj(x))))
        return self.o_proj(_attend(query, earlier).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, heads * dim] -> [B, heads, L, dim]."""
        return x.view(*x.shape[:2], -1, self._dim).transpose(1, 2)


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def _attend(query: Tensor, steps: list[_Keys]) -> Tensor:
    """[B, heads, L, dim], see the module: step 0's rows up to i - s, and one row of each later step."""
    late, groups = len(steps) - 1, query.shape[1] // steps[0].key.shape[1]
    if late == 0:
        return F.scaled_dot_product_attention(query, *steps[0], is_causal=True, enable_gqa=groups > 1)
    length, scale = query.shape[2], query.shape[3] ** -0.5
    query = query.reshape(len(query), -1, groups, *query.shape[2:]) * scale  # [B, kv_heads, groups, L, dim]
    seen = torch.ones(length, length, dtype=torch.bool).tril(-late)
    base = (query @ steps[0].key.transpose(-1, -2).unsqueeze(2)).masked_fill(~seen, -torch.inf)
    own = [_shifted(keys, late - step) for step, keys in enumerate(steps) if step]
    scores = [
        (query * keys.key.unsqueeze(2)).sum(-1, keepdim=True) for keys in own
    ]  # [B, kv_heads, groups, L, 1]
    weights = torch.cat([base, *scores], -1).float().softmax(-1).to(query.dtype)
    out = weights[..., :length] @ steps[0].value.unsqueeze(2)
    for place, keys in enumerate(own, start=length):
        out = out + weights[..., place : place + 1] * keys.value.unsqueeze(2)
    return out.flatten(1, 2)


def _shifted(keys: _Keys, rows: int) -> _Keys:
    """Row i has what row i - rows had; the first rows see zeros, and no round begins so early."""
    return _Keys(*(F.pad(each, (0, 0, rows, 0))[:, :, : each.shape[2]] for each in keys))


class _Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One llama layer whose attention reads token and state side by side, each normed by itself."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden, sizes.eps)  # of the embedding
        self.hidden_norm = RMSNorm(sizes.hidden, sizes.eps)
        self.self_attn = _Attention(sizes)
        self.post_attention_layernorm = RMSNorm(sizes.hidden, sizes.eps)
        self.mlp = _Mlp(sizes)

    def forward(
        self, hidden: Tensor, embedded: Tensor, angles: tuple[Tensor, Tensor], earlier: list[_Keys]
    ) -> Tensor:
        """[B, L, H] each -> [B, L, H]. The residual is the hidden state before its norm."""
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, angles, earlier)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class Eagle3(nn.Module):
    """See the module."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(sizes.aux * sizes.hidden, sizes.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(sizes)])
        self.norm = RMSNorm(sizes.hidden, sizes.eps)
        self.lm_head = nn.Linear(sizes.hidden, sizes.draft_vocabulary, bias=False)

    def forward(self, aux: Tensor, embedded: Tensor, steps: int) -> Iterator[Guess]:
        """See engine.train.heads.TrainedHead."""
        hidden = self.fc(aux.to(self.fc.weight.dtype)).float()
        angles = self.angles(hidden.shape[1])
        earlier: list[_Keys] = []
        for step in range(steps):
            if step:
                hidden = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
            hidden = self.layer(hidden, embedded, angles, earlier)
            yield Guess(self.norm(hidden), self.lm_head.weight)

    @property
    def layer(self) -> Layer:
        """The only one; the list is for its name on disk."""
        return cast("Layer", self.layers[0])

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions: [L, dim] each."""
        dim = self.sizes.head_dim
        inverse = self.sizes.theta ** (-torch.arange(0, dim, 2).float() / dim)
        angles = torch.arange(length).float()[:, None] * inverse
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()
