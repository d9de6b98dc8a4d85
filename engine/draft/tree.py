"""Trees of alternatives that grow where the draft is surest.

A node's score is the logarithm of what the draft gives its whole way from the root, so a child's is never above its
parent's. A level grows from the frontier, the best few nodes of the level before. Of all nodes seen only the best
`ask.k` are kept, and what has fallen out can never come back: nothing more grows from it.

    width 2, 4 nodes      root -+- a .6 -+- c .4      kept are a, b, c and f
                                |        +- d .1      the third level grows from c and f
                                +- b .3 -+- f .2
                                         +- e .05

A tree is a certain draft: the target draws its own token at each node, and the round goes on while a child carries it.
So whatever the scores are worth, the text stays that of plain decoding.

Source: Li et al., "EAGLE-2: faster inference of language models with dynamic draft trees", 2024.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.api import SamplingParams
from engine.batch import Span
from engine.draft.base import Ask, Draft
from engine.draft.chains import allowed
from engine.draft.shape import ROOT
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rows import Row, edit
from engine.sequence import Sequence as Seq
from engine.transfer import send


class Grown(NamedTuple):
    """The nodes from which a tree has grown, as a forward takes them: its rows are the root's and one for each node."""

    tokens: list[int]
    parents: list[int]
    frontier: int  # the last so many rows are those that the next level grows from; the root's, if there are no nodes
    level: int  # of these: 0 for the root

    def ways(self) -> list[list[int]]:
        """The drafted tokens down to each row of the frontier."""
        draft, rows = Draft(self.tokens, parents=self.parents), len(self.tokens) + 1
        return [draft.way(row) for row in range(rows - self.frontier, rows)]


class Likeliest(NamedTuple):
    """What may follow each of some rows, the likeliest first."""

    tokens: NDArray[np.int64]  # [rows, M]
    logs: NDArray[np.float64]  # [rows, M], of the probability given the row; falling


class Tree:
    """One draft while it grows."""

    def __init__(self, nodes: int, width: int) -> None:
        """nodes: kept in the end, at most. width: nodes of a level from which the next one grows, at most."""
        self._nodes = nodes
        self._width = width
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._kept: list[int] = []  # rising, and closed under parents
        self._grown: list[int] = []  # the nodes of all frontiers so far
        self._level = 0
        self.frontier: list[int] = [ROOT]
        """Nodes that the next level grows from, rising; none once the draft has nothing better to offer."""

    def grow(self, likeliest: Likeliest) -> None:
        """Take what may follow each node of the frontier, in order. A token without any probability is no node."""
        scores = self._reached()[:, None] + likeliest.logs
        ranked = self._ranked(scores)
        old = len(self._kept)
        found = np.sort(ranked[ranked >= old]) - old  # the cells of `scores` that are nodes now
        first = len(self._tokens)
        self._add(found, likeliest.tokens, scores)
        best = ranked[ranked >= old][: self._width] - old
        self._kept = [self._kept[place] for place in np.sort(ranked[ranked < old])]
        self._kept += range(first, len(self._tokens))
        self.frontier = np.sort(first + np.searchsorted(found, best)).tolist()
        self._grown += self.frontier
        self._level += 1

    def grown(self) -> Grown:
        """What the next level needs of this draft."""
        places = {ROOT: ROOT, **{node: place for place, node in enumerate(self._grown)}}
        parents = [places[self._parents[node]] for node in self._grown]
        return Grown([self._tokens[node] for node in self._grown], parents, len(self.frontier), self._level)

    def draft(self) -> Draft:
        """The best nodes, level by level."""
        places = {ROOT: ROOT, **{node: place for place, node in enumerate(self._kept)}}
        parents = [places[self._parents[node]] for node in self._kept]
        return Draft.certain([self._tokens[node] for node in self._kept], parents)

    def _reached(self) -> NDArray[np.float64]:
        """Scores of the frontier; the root's is 0."""
        return np.array([0.0 if node == ROOT else self._scores[node] for node in self.frontier])

    def _ranked(self, scores: NDArray[np.float64]) -> NDArray[np.intp]:
        """Which are the best nodes, best first: places in what is kept, then, counted on, cells of `scores`.

        Among equals those found first come first, so a parent comes before its child.
        """
        everyone = np.concatenate([[self._scores[node] for node in self._kept], scores.ravel()])
        order = np.argsort(-everyone, kind="stable")
        best: NDArray[np.intp] = order[np.isfinite(everyone[order])][: self._nodes]
        return best

    def _add(self, cells: NDArray[np.intp], tokens: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
        rows = cells // scores.shape[1]
        self._parents += [self.frontier[row] for row in rows]
        self._tokens += tokens.ravel()[cells].tolist()
        self._scores += scores.ravel()[cells].tolist()


LikeliestOf = Callable[[Sequence[int], Sequence[Grown], int], Likeliest]
"""(which asks, their trees, M) -> the M likeliest tokens after each row of the frontiers, those of one ask after the
other's."""


Draw = Callable[[list[int]], list[Draft]]
"""(which asks) -> a draft for each."""


def apart(asks: Sequence[Ask], wanted: Callable[[Ask], bool], these: Draw, others: Draw) -> list[Draft]:
    """One way to draw for the asks that are wanted, another for the others."""
    found: dict[int, Draft] = {}
    chosen = [wanted(ask) for ask in asks]
    for which, draw in ((True, these), (False, others)):
        mine = [i for i, choice in enumerate(chosen) if choice is which]
        if mine:
            found.update(zip(mine, draw(mine), strict=True))
    return [found[i] for i in range(len(asks))]


def by_shape(asks: Sequence[Ask], chains: Draw, trees: Draw) -> list[Draft]:
    """One way to draw for the asks that leave no more nodes than levels, another for those that want a tree."""
    return apart(asks, lambda ask: ask.k > ask.levels, trees, chains)


def even_width(ask: Ask) -> int:
    """So many nodes of a level that those which grow have all a place among the k positions that are reserved."""
    return max(ask.k // ask.levels, 1)


def grow_trees(
    asks: Sequence[Ask], likeliest_of: LikeliestOf, width: Callable[[Ask], int] = even_width
) -> list[Draft]:
    """A tree for each ask, of at most ask.k nodes on at most ask.levels levels, all growing together.

    Calls `likeliest_of` once for each level. width: how many nodes of a level grow, with as many children each.
    """
    trees = [Tree(ask.k, width(ask)) for ask in asks]
    most = max(map(width, asks), default=0)
    for level in range(max((ask.levels for ask in asks), default=0)):
        active = [i for i, ask in enumerate(asks) if ask.levels > level and trees[i].frontier]
        if not active:
            break
        found = likeliest_of(active, [trees[i].grown() for i in active], most)
        ends = np.cumsum([len(trees[i].frontier) for i in active])
        for i, end in zip(active, ends, strict=True):
            rows, children = slice(end - len(trees[i].frontier), end), slice(width(asks[i]))
            trees[i].grow(Likeliest(found.tokens[rows, children], found.logs[rows, children]))
    return [tree.draft() for tree in trees]


def tree_span(sequence: Seq, tree: Grown) -> Span:
    """The rows of a draft model that continues the text itself: its last token's, and one for each node."""
    start = len(sequence.tokens) - 1
    return Span(
        sequence.table, start, [sequence.tokens[-1], *tree.tokens], tree.frontier, tree.parents or None
    )


def likeliest(asks: Sequence[Ask], trees: Sequence[Grown], logits: Tensor, most: int) -> Likeliest:
    """Of logits [rows of the frontiers, V], edited, masked by grammars and cut as the target's are: so a draft is sure
    of what the target is likely to draw.
    """
    params, rows = [], []
    for ask, tree in zip(asks, trees, strict=True):
        params += [ask.sequence.sampling] * tree.frontier
        rows += [Row(ask.sequence.edits, way, allowed(ask, way)) for way in tree.ways()]
    return of_logits(edit(logits, rows), params, most)


def of_logits(logits: Tensor, params: Sequence[SamplingParams], most: int) -> Likeliest:
    """Of edited logits [R, V]: cut by these parameters where they sample, as they are where they are greedy."""
    logs = logits.float().log_softmax(dim=-1)
    sampled = [i for i, each in enumerate(params) if each.temperature > 0]
    if sampled:
        at = send(sampled, logits.device)
        laws = probabilities(logits[at], RowParams.of([params[i] for i in sampled], logits.device))
        logs.index_copy_(0, at, laws.log())
    top = logs.topk(min(most, logits.shape[-1]), dim=-1)
    return Likeliest(top.indices.cpu().numpy(), top.values.double().cpu().numpy())
