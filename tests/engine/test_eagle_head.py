"""An EAGLE head over paged keys says what the same head says of a whole text at once, in every layout and form."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.batch import Span
from engine.heads.eagle import EagleHead
from engine.heads.formats import Fit, read_eagle
from engine.heads.fused import FusedHead
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
        self.pool = BlockPool(64, block_size)
        dtype = head.embedding.dtype
        self.memory = KVMemory({0: head.kv_shape}, 64, block_size, dtype, CPU, begin=1)
        self.runner = Runner(self.memory, kernels)
        self.tables = [BlockTable(self.pool) for _ in range(3)]
        random = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(VOCABULARY, (3, 90), generator=random)
        self.hidden = torch.randn(3, 90, HIDDEN, generator=random).to(dtype)

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


def test_native_chains_are_the_plain_rows_likeliest_tokens(tmp_path: Path, squeezing: NativeOps) -> None:
    """Of different lengths, over a block's end, after rows that were missing."""
    files = read_eagle(make_eagle_dir(tmp_path), FIT)
    plain = EagleHead.of(files, ends(torch.bfloat16), torch.bfloat16)
    fused = FusedHead(plain, files.targets, squeezing)
    desk = Desk(plain, 4, squeezing)
    lengths, levels = (14, 7, 2), [5, 1, 3]
    spans = []
    for text, (length, more) in enumerate(zip(lengths, levels, strict=True)):
        desk.tables[text].reserve(length + more)
        spans.append(Span(desk.tables[text], 1, desk.tokens[text, 1:length].tolist(), 1))
    hidden = torch.cat([desk.hidden[text, 1:length] for text, length in enumerate(lengths)])
    got = fused.chains(desk.runner.pack(spans), hidden, desk.memory, levels)
    for text, (length, more) in enumerate(zip(lengths, levels, strict=True)):
        assert len(got[text]) == more
        for level, token in enumerate(got[text]):
            if level == 0:
                said = desk.read(fused, (text, 1, length))
            else:
                place = length - 1 + level
                batch = desk.runner.pack([Span(desk.tables[text], place, [got[text][level - 1]], 1)])
                attention = desk.runner.attention(batch)
                said = fused(batch.tokens, said[0], batch.positions, attention, batch.logit_rows)
            assert token == files.targets[said[1][0].argmax()]
