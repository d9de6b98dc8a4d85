"""Drafts that were drawn from laws of their own, all requests of a step at once.

Two rules. `engine.verify.law_tree` specifies the first, which is token by token for a chain, and `law_block` the other.

The nodes of all drafts are numbered through. A node is weighed against the target's law at its parent, from which the
laws of its rejected elder siblings have been taken:

    rows of p   | root 0 1 2 | root 0 |          nodes   0 1 2 | 3        first 0, 4
                  claim 0      claim 1           elders  - 0 - | -        if 0 and 1 are siblings
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.draft.shape import ROOT, children, depths
from engine.sampling.rng import Purpose
from engine.transfer import send, upload
from engine.verify.claim import Claim, Verdict, draws, verdict
from engine.verify.draw import draw


class Drawn(NamedTuple):
    """A claim whose draft was drawn from laws."""

    claim: Claim
    first: int  # row of p at its root; its nodes' rows follow


class _Node(NamedTuple):
    row: int  # of p, at its parent
    token: int
    elder: int | None  # the sibling drawn before it, numbered through
    rank: int  # how many siblings were


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Every node against the law that it has to stand against."""

    p: Tensor  # [R, V]
    q: Tensor  # [N, V]
    nodes: Sequence[_Node]
    rests: dict[int, Tensor]  # of nodes with elder siblings: what these left of the target's law, [V]

    def law(self, node: int) -> Tensor:
        """What the target's law is when it comes to this node: [V], sums to 1."""
        return self.rests[node] if node in self.rests else self.p[self.nodes[node].row]

    def behind(self, node: int) -> Tensor:
        """And when this node was rejected."""
        return residual(self.law(node)[None], self.q[node][None])[0]

    def ratios(self) -> tuple[list[float], list[float]]:
        """(target's, draft's) probability of each node's token."""
        rows, tokens, younger = upload(
            [[node.row for node in self.nodes], [node.token for node in self.nodes], list(self.rests)],
            self.p.device,
        )
        target = self.p[rows, tokens]
        if self.rests:
            laws = torch.stack(list(self.rests.values()))
            target[younger] = laws.gather(1, tokens[younger, None]).squeeze(1)
        draft = self.q.gather(1, tokens[:, None]).squeeze(1)
        target_column, draft_column = torch.stack([target, draft]).tolist()
        return target_column, draft_column


def verify_tokens(p: Tensor, drawn: Sequence[Drawn]) -> list[Verdict]:
    """Recursive rejection: from the root down, each node's children in order until one is kept. p: [R, V] float32."""
    weighed = _weigh(p, drawn)
    ratios = list(zip(*weighed.ratios(), strict=True))
    kept = _kept(weighed, drawn, ratios)
    paths, laws, chances, start = [], [], [], 0
    for claim, first in drawn:
        span, families = slice(start, start + len(claim.draft.tokens)), children(claim.draft.shape)
        path, rejected = _descend(families, kept[span])
        end = path[-1] if path else ROOT
        paths.append(path)
        laws.append(p[first + end + 1] if rejected is None else weighed.behind(start + rejected))
        chances.append(_level_chances([ROOT, *path], families, ratios[span]))
        start = span.stop
    return _close(drawn, paths, laws, chances)


def verify_blocks(p: Tensor, drawn: Sequence[Drawn]) -> list[Verdict]:
    """The longest prefix of each chain that its own coin keeps. p: [R, V] float32."""
    weighed = _weigh(p, drawn)
    weights = _weights(weighed, drawn)
    excesses = _excesses(weighed, drawn, weights)
    chances = [_chances(*each) for each in zip(weights, excesses, strict=True)]
    nodes = [(claim, j) for claim, _ in drawn for j in range(len(claim.draft.tokens))]
    coins = draws([(claim, 0) for claim, _ in nodes], Purpose.BLOCK, [j for _, j in nodes])
    paths, laws, start = [], [], 0
    for (claim, first), own, chance in zip(drawn, weights, chances, strict=True):
        k = len(claim.draft.tokens)
        accepted = max((j + 1 for j in range(k) if coins[start + j] < chance[j]), default=0)
        paths.append(range(accepted))
        if accepted == k:
            laws.append(p[first + k])
        else:
            q = weighed.q[start + accepted]
            laws.append(residual(p[first + accepted][None], q[None], own[accepted])[0])
        start += k
    levels = [_block_levels(*each) for each in zip(weights, excesses, strict=True)]
    return _close(drawn, paths, laws, levels)


def residual(p: Tensor, q: Tensor, weight: float = 1.0) -> Tensor:
    """max(weight * p - q, 0), normalised: [n, V]. Where nothing is left, it is never asked for but by rounding: p."""
    rest = (weight * p - q).clamp_(min=0.0)
    total = rest.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def _weigh(p: Tensor, drawn: Sequence[Drawn]) -> _Weighed:
    """Sibling by sibling: the second ones of all families at once, then the third ones."""
    q = torch.cat([_laws(claim) for claim, _ in drawn])
    nodes = _nodes(drawn)
    weighed = _Weighed(p, q, nodes, {})
    for rank in range(1, max(node.rank for node in nodes) + 1):
        younger = {
            i: node.elder for i, node in enumerate(nodes) if node.rank == rank and node.elder is not None
        }
        elders = list(younger.values())
        rests = residual(torch.stack([weighed.law(elder) for elder in elders]), q[send(elders, q.device)])
        weighed.rests.update(zip(younger, rests, strict=True))
    return weighed


def _laws(claim: Claim) -> Tensor:
    """q of each drafted token: [k, V]."""
    assert claim.draft.probs is not None, "certain drafts are decided by what the target says"
    return claim.draft.probs


def _nodes(drawn: Sequence[Drawn]) -> list[_Node]:
    nodes: list[_Node] = []
    for claim, first in drawn:
        start = len(nodes)
        last: dict[int, int] = {}  # parent -> its last child so far
        for node, (token, parent) in enumerate(zip(claim.draft.tokens, claim.draft.shape, strict=True)):
            elder = last.get(parent)
            rank = 0 if elder is None else nodes[elder].rank + 1
            nodes.append(_Node(first + parent + 1, token, elder, rank))
            last[parent] = start + node
    return nodes


def _kept(weighed: _Weighed, drawn: Sequence[Drawn], ratios: Sequence[tuple[float, float]]) -> list[bool]:
    """Of each node: whether its coin keeps it, should it come to it. A coin is shared by the nodes of a level that have
    as many elder siblings: they are on different branches, and a round goes down one.
    """
    places = [(claim, depth - 1) for claim, _ in drawn for depth in depths(claim.draft.shape)]
    coins = draws(places, Purpose.ACCEPT, [node.rank for node in weighed.nodes])
    # coin < p/q, written without the division so that q = 0 rejects
    return [q > 0 and coin * q < p for coin, (p, q) in zip(coins, ratios, strict=True)]


def _descend(families: Sequence[Sequence[int]], kept: Sequence[bool]) -> tuple[list[int], int | None]:
    """(the accepted path, the last node rejected at its end; None where no node hangs)."""
    path: list[int] = []
    while True:
        family = families[path[-1] + 1 if path else 0]
        chosen = next((node for node in family if kept[node]), None)
        if chosen is None:
            return path, family[-1] if family else None
        path.append(chosen)


def _level_chances(
    nodes: Sequence[int], families: Sequence[Sequence[int]], ratios: Sequence[tuple[float, float]]
) -> list[float]:
    """At each of these nodes: that one of its children is kept."""
    found = []
    for node in nodes:
        none = 1.0
        for p, q in (ratios[child] for child in families[node + 1]):
            none *= 1 - min(p / q, 1.0) if q > 0 else 1.0
        found.append(1 - none)
    return found


def _weights(weighed: _Weighed, drawn: Sequence[Drawn]) -> list[list[float]]:
    """By claim: how much of each prefix's probability the draft did not exceed, from the empty one's 1 on."""
    ratios = iter(zip(*weighed.ratios(), strict=True))
    found = []
    for claim, _ in drawn:
        weights = [1.0]
        for _ in claim.draft.tokens:
            p, q = next(ratios)
            weights.append(min(weights[-1] * p / q, 1.0) if q > 0 else 0.0)
        found.append(weights)
    return found


def _excesses(weighed: _Weighed, drawn: Sequence[Drawn], weights: Sequence[list[float]]) -> list[list[float]]:
    """By claim: at each prefix but the empty one and the whole draft, what is left of weight * p above q."""
    inner = [(i, j) for i, own in enumerate(weights) for j in range(1, len(own) - 1)]
    if not inner:
        return [[] for _ in drawn]
    starts = np.cumsum([0] + [len(claim.draft.tokens) for claim, _ in drawn]).tolist()
    device = weighed.p.device
    rows, nodes = upload([[drawn[i].first + j for i, j in inner], [starts[i] + j for i, j in inner]], device)
    scale = send([weights[i][j] for i, j in inner], device, torch.float32)
    left = (scale[:, None] * weighed.p[rows] - weighed.q[nodes]).clamp_(min=0.0).sum(dim=-1).tolist()
    found = iter(left)
    return [list(islice(found, max(len(own) - 2, 0))) for own in weights]


def _chances(weights: Sequence[float], excesses: Sequence[float]) -> list[float]:
    """The probability with which each prefix is kept, if no longer one is."""
    inner = []
    for weight, rest in zip(weights[1:], excesses, strict=False):
        whole = rest + 1 - weight
        # p = q: a longer prefix is always kept; p no number, since edits left no token: none is
        inner.append(rest / whole if whole > 0 else weight)
    return [*inner, weights[-1]]  # right for the whole draft, whose last token nothing follows


def _block_levels(weights: Sequence[float], excesses: Sequence[float]) -> list[float]:
    """`engine.verify.law_block.level_chances` of one claim."""
    inner = zip(weights[1:], excesses, strict=False)
    return [*weights[1:2], *(1 - rest / weight if weight > 0 else 0.0 for weight, rest in inner)]


def _close(
    drawn: Sequence[Drawn],
    paths: Sequence[Sequence[int]],
    laws: Sequence[Tensor],
    chances: Sequence[Sequence[float]],
) -> list[Verdict]:
    """Draw every round's last token."""
    coins = draws([(claim, len(path)) for (claim, _), path in zip(drawn, paths, strict=True)], Purpose.SAMPLE)
    tokens = draw(torch.stack(list(laws)), send(coins, laws[0].device)).tolist()
    return [
        verdict(claim.draft, path, token, own)
        for (claim, _), path, token, own in zip(drawn, paths, tokens, chances, strict=True)
    ]
