"""Trees that grow where the draft is surest, against all the nodes that there could be."""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.batch import Span
from engine.draft.base import NO_DRAFT
from engine.draft.layer_skip import LayerSkipProposer
from engine.draft.shape import ROOT, depths
from engine.draft.tree import Likeliest, Tree
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.orchard import with_proposer, with_shape
from tests.tiny import VOCABULARY

Way = tuple[int, ...]


class Speaker(NamedTuple):
    """A draft model over few tokens: its law depends on the whole way."""

    vocabulary: int
    seed: int
    hard: bool = False  # many zeros and ties

    def law(self, way: Way) -> np.ndarray:
        return law(self, way)

    def score(self, way: Way) -> float:
        with np.errstate(divide="ignore"):
            return float(sum(np.log(self.law(way[:at])[token]) for at, token in enumerate(way)))

    def likeliest(self, ways: list[Way], most: int) -> Likeliest:
        with np.errstate(divide="ignore"):
            logs = np.log(np.array([self.law(way) for way in ways]))
        tokens = np.argsort(-logs, axis=1, kind="stable")[:, :most]
        return Likeliest(tokens, np.take_along_axis(logs, tokens, axis=1))


@cache
def law(speaker: Speaker, way: Way) -> np.ndarray:
    rng = np.random.default_rng([speaker.seed, *way, len(way)])
    weights = rng.integers(0, 3, speaker.vocabulary) if speaker.hard else rng.random(speaker.vocabulary)
    return weights / max(weights.sum(), 1)


def ways_of(tree: Tree) -> list[Way]:
    draft = tree.draft()
    return [tuple(way) for way in draft.ways()[1:]]


def grown(speaker: Speaker, *, nodes: int, width: int, most: int, levels: int) -> Tree:
    tree = Tree(nodes, width)
    for _ in range(levels):
        if tree.frontier:
            tree.grow(speaker.likeliest([tuple(way) for way in tree.grown().ways()], most))
    return tree


speakers = st.builds(Speaker, st.integers(2, 4), st.integers(0, 10**6), st.booleans())


@settings(max_examples=60, deadline=None)
@given(speaker=speakers, nodes=st.integers(1, 12), levels=st.integers(1, 3))
def test_with_width_to_spare_the_best_of_all_nodes_are_kept(
    speaker: Speaker, nodes: int, levels: int
) -> None:
    """No set of so many nodes has a higher sum of probabilities: the scores kept are the highest that there are."""
    tree = grown(speaker, nodes=nodes, width=nodes, most=nodes, levels=levels)
    every = [
        way for depth in range(1, levels + 1) for way in product(range(speaker.vocabulary), repeat=depth)
    ]
    scores = sorted((score for way in every if np.isfinite(score := speaker.score(way))), reverse=True)
    kept = ways_of(tree)
    assert len(set(kept)) == len(kept)
    np.testing.assert_allclose(sorted(map(speaker.score, kept), reverse=True), scores[:nodes], atol=1e-12)


def reference(speaker: Speaker, *, nodes: int, width: int, most: int, levels: int) -> set[Way]:
    """EAGLE-2 as it is written: expand the best `width` of each level, then rerank all that was seen."""
    seen: dict[Way, float] = {}
    frontier: list[Way] = [()]
    for _ in range(levels):
        fresh = [
            (*way, int(token))
            for way in frontier
            for token in speaker.likeliest([way], most).tokens[0]
            if np.isfinite(speaker.score((*way, int(token))))
        ]
        seen |= {way: speaker.score(way) for way in fresh}
        frontier = sorted(fresh, key=seen.__getitem__, reverse=True)[:width]
    return set(sorted(seen, key=seen.__getitem__, reverse=True)[:nodes])


@settings(max_examples=60, deadline=None)
@given(
    # Hypothesis fills in what is left out, also where there is a default; and of ties either may be kept.
    speaker=st.builds(Speaker, st.integers(2, 5), st.integers(0, 10**6), hard=st.just(value=False)),
    nodes=st.integers(1, 20),
    width=st.integers(1, 4),
    most=st.integers(1, 4),
    levels=st.integers(1, 4),
)
def test_a_narrow_tree_keeps_what_eagle_2_keeps(
    speaker: Speaker, nodes: int, width: int, most: int, levels: int
) -> None:
    """Nothing is lost by not growing from nodes that have fallen out already."""
    sizes = {"nodes": nodes, "width": width, "most": most, "levels": levels}
    assert set(ways_of(grown(speaker, **sizes))) == reference(speaker, **sizes)


@settings(max_examples=50, deadline=None)
@given(speaker=speakers, nodes=st.integers(1, 16), width=st.integers(1, 4), levels=st.integers(1, 5))
def test_a_draft_is_in_order_of_levels_and_what_grows_fits_into_the_room_for_it(
    speaker: Speaker, nodes: int, width: int, levels: int
) -> None:
    tree = grown(speaker, nodes=nodes, width=width, most=width, levels=levels)
    draft = tree.draft()
    assert draft.misfit(nodes) is None
    assert depths(draft.shape) == sorted(depths(draft.shape))
    grows = tree.grown()
    assert len(grows.tokens) - grows.frontier <= width * (levels - 1)
    assert len(grows.ways()) == grows.frontier


def test_rows_of_the_frontier_come_last_with_their_own_ways() -> None:
    tree = Tree(4, 2)
    assert tree.grown() == ([], [], 1, 0)
    assert tree.grown().ways() == [[]]
    tree.grow(Likeliest(np.array([[7, 8]]), np.log([[0.6, 0.3]])))
    tree.grow(
        Likeliest(np.array([[3, 4], [5, 6]]), np.log([[0.4 / 0.6, 0.1 / 0.6], [0.2 / 0.3, 0.05 / 0.3]]))
    )
    assert tree.grown() == ([7, 8, 3, 5], [ROOT, ROOT, 0, 1], 2, 2)
    assert tree.grown().ways() == [[7, 3], [8, 5]]
    assert tree.draft() == ([7, 8, 3, 5], None, None, [ROOT, ROOT, 0, 1])


def test_what_is_certain_becomes_a_chain_and_what_is_no_number_becomes_nothing() -> None:
    tree = Tree(8, 2)
    for token in (5, 6, 7):
        tree.grow(Likeliest(np.array([[token, 0]]), np.array([[0.0, -np.inf]])))
    assert tree.draft() == ([5, 6, 7], None, None, None)
    broken = Tree(8, 2)
    broken.grow(Likeliest(np.array([[5, 6]]), np.full((1, 2), np.nan)))
    assert broken.draft() == NO_DRAFT
    assert broken.frontier == []


class Noisy(LayerSkipProposer):
    """A copy of the target that mishears: noise on its logits, the same for the same position."""

    def _forward(self, spans: list[Span]) -> Tensor:
        logits = super()._forward(spans)
        wanted = [at for span in spans for at in list(span.positions)[-span.logits :]]
        return logits + 0.4 * logits.std(dim=-1, keepdim=True) * torch.stack([_noise(at) for at in wanted])


@cache
def _noise(position: int) -> Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(position))


def test_a_tree_accepts_more_than_a_chain_of_as_many_nodes(make_engine: MakeEngine) -> None:
    rng = np.random.default_rng(5)
    prompts = [[int(t) for t in rng.integers(3, VOCABULARY, size=n)] for n in (6, 17, 30)]
    asked = [request(str(i), prompt, max_tokens=80) for i, prompt in enumerate(prompts)]
    texts, accepted = [], []
    for levels in (8, 4):
        engine = with_shape(make_engine("none"), levels=levels, nodes=8)
        with_proposer(engine, Noisy(engine._loaded, engine._runner, ()))
        outputs = generate(engine, *asked)
        texts.append([outputs[each.id].tokens for each in asked])
        reports = [outputs[each.id].report for each in asked]
        accepted.append(sum(sum(r.accepted) for r in reports) / sum(r.rounds for r in reports))
    assert texts[0] == texts[1]
    assert 0.5 < accepted[0] < 2, "a draft that is always right or always wrong shows nothing"
    assert accepted[1] > accepted[0]
