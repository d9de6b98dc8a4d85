"""The shape of a draft: a chain, or a tree of alternatives.

A node is a drafted token, named by its place in the draft. Its parent is a node before it, or ROOT, the last token of
the committed text.

    parents  [-1, 0, 0, -1, 3]          text -+- 0 -+- 1
                                              |     +- 2
                                              +- 3 --- 4

A chain is the tree in which each node hangs at the one before it: [-1, 0, 1, ...]. Verification computes a row for the
root and one for each node, in this order: node n is row n + 1.
"""

from collections.abc import Sequence
from typing import Final

ROOT: Final = -1
MOST_NODES: Final = 63  # what a row sees of its span is a set of 64 bits, and one of them is the root's


def chain(nodes: int) -> range:
    """Parents of a chain."""
    return range(ROOT, nodes - 1)


def depths(parents: Sequence[int]) -> list[int]:
    """Levels below the root, by node: 1 for those that hang at it."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child down to `node`; none for the root itself."""
    upwards = []
    while node != ROOT:
        upwards.append(node)
        node = parents[node]
    return upwards[::-1]


def children(parents: Sequence[int]) -> list[list[int]]:
    """Each row's children in order, the root's first."""
    found: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        found[parent + 1].append(node)
    return found


def sights(parents: Sequence[int]) -> list[int]:
    """What each row sees of the rows of its span: bit r for row r. That is its ancestors and itself."""
    found = [1]
    for node, parent in enumerate(parents):
        found.append(found[parent + 1] | 1 << (node + 1))
    return found


def misshapen(parents: Sequence[int]) -> str | None:
    """Why these are no parents of a tree that can be verified, if so."""
    if len(parents) > MOST_NODES:
        return f"a tree of {len(parents)} nodes is too large: a row sees at most {MOST_NODES}, so draft fewer"
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            return (
                f"node {node} hangs at {parent}: a parent comes before its children, or is {ROOT}, the root"
            )
    return None
