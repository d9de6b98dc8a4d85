"""An EAGLE head over paged keys says what the same head says of a whole text at once, in every layout and form."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.batch import Span
from engine.draft.base import Ask, Draft
from engine.draft.tree import Grown, Likeliest, even_width, grow_trees
from engine.heads.eagle import EagleHead
from engine.heads.formats import EagleFiles, Fit, read_eagle
from engine.heads.fused import FusedHead, Growth
from engine.kernels.native import NativeOps
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.ends import Ends
from engine.model.runner import Runner
from tests.engine.dense_head import dense
from tests.tiny import VOCABULARY
from tests.tiny_heads import HIDDEN, LAYERS, Heads, make_eagle_dir

FIT = Fit(HIDDEN, VOCABULARY, LAYERS)
CPU = torch.device("cpu")
LAYOUTS = ("speculators", "safeailab", "eagle1")


def ends(dtype: torch.dtype = torch.float32) -> Ends:
    generator = torch.Generator().manual_seed(9)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype)
    return Ends(embedding, lambda hidden: hidden @ embedding.t())


class Desk:
    """A head over paged keys, and texts of random tokens and hidden states that it reads."""

    def __init__(self, head: EagleHead, block_size: int, kernels: NativeOps | None = None) -> None:
        self.pool = BlockPool(128, block_size)
        dtype = head.embedding.dtype
        self.memory = KVMemory({0: head.kv_shape}, 128, block_size, dtype, CPU, begin=1)
        self.runner = Runner(self.memory, kernels)
        self.tables = [BlockTable(self.pool) for _ in range(8)]
        random = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(VOCABULARY, (8, 90), generator=random)
        self.hidden = torch.randn(8, 90, HIDDEN, generator=random).to(dtype)

    def read(self, forward: EagleHead | FusedHead, *pieces: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Rows [start, end) of each (text, start, end): what the last of each hands on and says."""
        spans = []
        for text, start, end in pieces:
            self.tables[text].reserve(end)
            spans.append(Span(self.tables[text], start, self.tokens[text, start:end].tolist(), 1))
        batch = self.runner.pack(spans)
        hidden = torch.cat([self.hidden[text, start:end] for text, start, end in pieces])
        return forward(batch.tokens, hidden, batch.positions, self.runner.attention(batch), batch.logit_rows)


PIECES = (
    ((0, 1, 40), (1, 1, 5)),
    ((0, 40, 41), (1, 5, 6), (2, 1, 2)),
    ((1, 6, 80), (0, 41, 44), (2, 2, 19)),
    ((0, 42, 60),),  # after a rejection: places 42 and 43 again, of another text from there on
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("before", [False, True])
def test_paged_rows_equal_the_dense_ones(tmp_path: Path, layout: str, before: bool) -> None:
    files = read_eagle(make_eagle_dir(tmp_path, layout, norm_before_residual=before), FIT)
    shared = ends()
    head = EagleHead.of(files, shared, torch.float32)
    desk = Desk(head, 4)
    for pieces in PIECES:
        if len(pieces) == 1:
            desk.hidden[0, 42:] = desk.hidden[1, 42:]
            desk.tokens[0, 42:] = desk.tokens[1, 42:]
        handed_on, logits = desk.read(head, *pieces)
        for row, (text, _, end) in enumerate(pieces):
            wanted = dense(files, desk.tokens[text, 1:end], desk.hidden[text, 1:end], shared.embedding)
            torch.testing.assert_close(handed_on[row], wanted[0][-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(logits[row], wanted[1][-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("heads", [(4, 2, 16), (4, 2, 32), (2, 1, 64)])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("output", [False, True])
def test_native_rows_equal_the_plain_ones(
    tmp_path: Path, squeezing: NativeOps, heads: Heads, block_size: int, output: bool
) -> None:
    """In bf16, the rows that nobody asks for left out as early as they can be."""
    folder = make_eagle_dir(tmp_path, "speculators", heads, norm_before_residual=output, norm_output=output)
    files = read_eagle(folder, FIT)
    plain = EagleHead.of(files, ends(torch.bfloat16), torch.bfloat16)
    assert FusedHead.suits(plain, squeezing)
    fused = FusedHead(plain, files.targets, squeezing)
    desks = [Desk(plain, block_size), Desk(plain, block_size, squeezing)]
    for pieces in PIECES:
        wanted = desks[0].read(plain, *pieces)
        got = desks[1].read(fused, *pieces)
        for one, other in zip(got, wanted, strict=True):
            assert spread_error(one, other) < 0.04


@pytest.mark.parametrize("heads", [(4, 2, 16), (2, 1, 64)])
def test_native_trees_equal_the_plain_ones(tmp_path: Path, squeezing: NativeOps, heads: Heads) -> None:
    files = read_eagle(make_eagle_dir(tmp_path, "speculators", heads), FIT)
    plain = EagleHead.of(files, ends(torch.bfloat16), torch.bfloat16)
    fused = FusedHead(plain, files.targets, squeezing)
    desks = [Desk(plain, 16), Desk(plain, 16, squeezing)]
    found = []
    for desk, forward in zip(desks, (plain, fused), strict=True):
        desk.read(forward, (0, 1, 30), (1, 1, 3))
        parents = ([-1, -1, 0, 0, 1, 4], [-1] * 20)
        spans = []
        for text, shape in enumerate(parents):
            start = 29 if text == 0 else 2
            desk.tables[text].reserve(start + len(shape) + 1)
            tokens = desk.tokens[text, start : start + len(shape) + 1].tolist()
            spans.append(Span(desk.tables[text], start, tokens, 4, shape))
        batch = desk.runner.pack(spans)
        hidden = torch.cat([desk.hidden[0, 29:36], desk.hidden[1, 2:23]])
        attention = desk.runner.attention(batch)
        found.append(forward(batch.tokens, hidden, batch.positions, attention, batch.logit_rows))
    for one, other in zip(*found, strict=True):
        assert spread_error(one, other) < 0.04


def spread_error(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.float(), wanted.float()
    return float(
        ((got - wanted).abs().max(-1).values / (wanted.max(-1).values - wanted.min(-1).values)).max()
    )


class Grove:
    """Drafts that grow level by level behind a desk's texts, each level's rows read with all of its tree."""

    def __init__(self, desk: Desk, files: EagleFiles, forward: FusedHead, lengths: Sequence[int]) -> None:
        self._desk = desk
        self._targets = torch.arange(VOCABULARY) if files.targets is None else files.targets
        self._forward = forward
        self._lengths = lengths
        self._outputs: list[Tensor] = []

    def likeliest(self, active: Sequence[int], trees: Sequence[Grown], most: int) -> Likeliest:
        if trees[0].tokens:
            said = self._grow(active, trees)
            for i, part in zip(active, said[0].split([tree.frontier for tree in trees]), strict=True):
                self._outputs[i] = torch.cat([self._outputs[i], part])
        else:
            said = self._desk.read(self._forward, *((text, 1, self._lengths[text]) for text in active))
            self._outputs = list(said[0].split(1))
        logs, order = said[1].float().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        return Likeliest(self._targets[order[:, :most]].numpy(), logs[:, :most].double().numpy())

    def _grow(self, active: Sequence[int], trees: Sequence[Grown]) -> tuple[Tensor, Tensor]:
        spans, hidden, desk = [], [], self._desk
        for text, tree in zip(active, trees, strict=True):
            last = self._lengths[text] - 1
            tokens = [int(desk.tokens[text, last]), *tree.tokens]
            spans.append(Span(desk.tables[text], last, tokens, tree.frontier, tree.parents))
            hidden += [desk.hidden[text, last][None], self._outputs[text][[p + 1 for p in tree.parents]]]
        batch = desk.runner.pack(spans)
        attention = desk.runner.attention(batch)
        return self._forward(batch.tokens, torch.cat(hidden), batch.positions, attention, batch.logit_rows)


@pytest.mark.parametrize("heads", [(4, 2, 16), (4, 2, 32), (2, 1, 64)])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("layout", ["speculators", "safeailab"])
def test_native_drafts_are_those_grown_level_by_level(
    tmp_path: Path, squeezing: NativeOps, heads: Heads, block_size: int, layout: str
) -> None:
    """Chains and trees of all sizes at once, over a block's end, after rows that were missing; and the keys of a text's
    own stay what they were.
    """
    files = read_eagle(make_eagle_dir(tmp_path, layout, heads, scale=3.0), FIT)
    fused = FusedHead(EagleHead.of(files, ends(torch.bfloat16), torch.bfloat16), files.targets, squeezing)
    shapes = ((5, 5), (1, 1), (3, 12), (4, 63), (1, 9), (8, 33), (63, 63), (2, 5))  # levels, nodes
    lengths = (14, 7, 2, 16, 33, 3, 20, 31)
    asks = [Ask(None, nodes, levels) for levels, nodes in shapes]  # whose texts they are, nobody asks
    desk = Desk(EagleHead.of(files, ends(torch.bfloat16), torch.bfloat16), block_size, squeezing)
    for text, (_, nodes) in enumerate(shapes):
        desk.tables[text].reserve(lengths[text] + nodes)
    wanted = grow_trees(asks, Grove(desk, files, fused, lengths).likeliest)
    before = [store[0].clone() for store in (desk.memory.keys, desk.memory.values)]
    spans = [
        Span(desk.tables[text], 1, desk.tokens[text, 1:length].tolist(), 1)
        for text, length in enumerate(lengths)
    ]
    hidden = torch.cat([desk.hidden[text, 1:length] for text, length in enumerate(lengths)])
    growths = [Growth(ask.levels, ask.k, even_width(ask)) for ask in asks]
    got = fused.drafts(desk.runner.pack(spans), hidden, desk.memory, growths)
    assert [Draft.certain(*each) for each in got] == wanted
    kept = [slot for text, length in enumerate(lengths) for slot in desk.tables[text].slots(1, length)]
    for store, was in zip((desk.memory.keys, desk.memory.values), before, strict=True):
        torch.testing.assert_close(store[0][kept], was[kept], atol=0, rtol=0)
    unowned = sorted(
        set(range(desk.pool.total * block_size))
        - {slot for table in desk.tables for slot in table.slots(0, table.allocated)}
    )
    assert not desk.memory.keys[0][unowned].any(), "something was written into a block of nobody's"
