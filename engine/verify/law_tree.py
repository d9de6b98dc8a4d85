"""Verification of trees, in float64. A specification like `engine.verify.law`, whose words it uses.

A tree is verified from the root down. At each node the target's law stands against the node's children: either one of
them is kept, and becomes the next node, or the round ends with a token drawn there. Shapes are those of
engine.draft.shape; laws of the target come by row, the root's first. A chain is a tree with one child per node, and
then both rules are those of `engine.verify.law`.

certain    drafts (the likeliest few tokens of some head, forced tokens): the target draws its own token at each node,
           and the round goes on while a child carries it.
drawn      drafts: siblings were drawn one after another without replacement, and are tried in this order. Each that is
           rejected takes its law from the target's.

Source of the second: recursive rejection sampling, in Jeon et al., "Recursive speculative decoding: accelerating LLM
inference via sampling without replacement", 2024, and Yang et al., "Multi-candidate speculative decoding", 2024.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.draft.shape import ROOT, children, path
from engine.verify.law import Law, Outcome, TreeOfLaws, acceptance, draw, residual


class Tree(NamedTuple):
    """A drawn draft. law: by node, what its token was drawn from."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    laws: tuple[Law, ...] = ()

    def prefix(self, node: int) -> Outcome:
        """The tokens from the root down to a node, its own included."""
        return tuple(self.tokens[each] for each in path(self.parents, node))


def without(law: Law, token: int) -> Law | None:
    """What is left of a law when a token was drawn from it, for its next sibling; None where nothing is."""
    rest = law.copy()
    rest[token] = 0.0
    total = rest.sum()
    return None if total == 0 else rest / total


def verify_certain_tree(
    p: Sequence[Law], tokens: Sequence[int], parents: Sequence[int], sample: Sequence[float]
) -> tuple[list[int], int]:
    """One round of a certain tree. sample: a uniform for each level. Returns (the accepted nodes, the last token)."""
    families = children(parents)
    accepted: list[int] = []
    while True:
        row = accepted[-1] + 1 if accepted else 0
        own = draw(p[row], sample[len(accepted)])
        carrier = [node for node in families[row] if tokens[node] == own]
        if not carrier:
            return accepted, own
        accepted.append(carrier[0])


def verify_tree(
    p: Sequence[Law], tree: Tree, accept: Sequence[float], sample: Sequence[float]
) -> tuple[list[int], int]:
    """One round of a drawn tree. accept: a uniform for each node, sample: for each level."""
    families = children(tree.parents)
    accepted: list[int] = []
    while True:
        row = accepted[-1] + 1 if accepted else 0
        left, chosen = p[row], None
        for node in families[row]:
            if accept[node] < acceptance(left, tree.laws[node], tree.tokens[node]):
                chosen = node
                break
            left = residual(left, tree.laws[node])
        if chosen is None:
            return accepted, draw(left, sample[len(accepted)])
        accepted.append(chosen)


def level_chance(p: Law, tree: Tree, node: int) -> float:
    """Probability that one of a node's children is kept, once the round has come there. p: the target's law at it."""
    left, none = p, 1.0
    for child in children(tree.parents)[node + 1]:
        none *= 1 - acceptance(left, tree.laws[child], tree.tokens[child])
        left = residual(left, tree.laws[child])
    return 1 - none


def tree_law(
    p_of: TreeOfLaws, q_of: TreeOfLaws, parents: Sequence[int], vocabulary: int
) -> dict[Outcome, float]:
    """Exact law of the tokens that one round commits, by summing over all trees of a shape and all outcomes."""
    law: dict[Outcome, float] = {}
    for tree, mass in trees(q_of, parents, vocabulary):
        for outcome, share in _outcomes(p_of, tree, ROOT):
            law[outcome] = law.get(outcome, 0.0) + mass * share
    return law


def trees(q_of: TreeOfLaws, parents: Sequence[int], vocabulary: int) -> list[tuple[Tree, float]]:
    """All drafts of a shape, with their probabilities. Where a law has no further token, the node is left out, and so
    is what would hang at it.
    """
    grown: list[_Growth] = [(Tree(), {ROOT: ROOT}, 1.0)]
    for node, parent in enumerate(parents):
        grown = [more for each in grown for more in _grow(q_of, each, node, parent, vocabulary)]
    return [(tree, mass) for tree, _, mass in grown]


_Growth = tuple[Tree, dict[int, int], float]  # with each node of the shape that is in the tree: as which


def _grow(q_of: TreeOfLaws, growth: _Growth, node: int, parent: int, vocabulary: int) -> list[_Growth]:
    """Every way to draw one more node of the shape."""
    tree, places, mass = growth
    law = _law(q_of, tree, places[parent]) if parent in places else None
    if law is None:
        return [growth]
    placed = {**places, node: len(tree.tokens)}
    return [
        (
            Tree((*tree.tokens, token), (*tree.parents, places[parent]), (*tree.laws, law)),
            placed,
            mass * float(law[token]),
        )
        for token in range(vocabulary)
        if law[token] > 0
    ]


def _law(q_of: TreeOfLaws, tree: Tree, parent: int) -> Law | None:
    """What the next child of a node is drawn from; None where its siblings have taken all there was."""
    law: Law | None = q_of[tree.prefix(parent)]
    for node, token in enumerate(tree.tokens):
        if tree.parents[node] == parent and law is not None:
            law = without(law, token)
    return law


def _outcomes(p_of: TreeOfLaws, tree: Tree, node: int) -> list[tuple[Outcome, float]]:
    """What a round that has come to a node commits, with the probabilities."""
    prefix = tree.prefix(node)
    left, reached, found = p_of[prefix], 1.0, []
    for child in children(tree.parents)[node + 1]:
        kept = acceptance(left, tree.laws[child], tree.tokens[child])
        found += [(outcome, reached * kept * share) for outcome, share in _outcomes(p_of, tree, child)]
        left, reached = residual(left, tree.laws[child]), reached * (1 - kept)
    return found + [((*prefix, token), reached * float(share)) for token, share in enumerate(left)]
