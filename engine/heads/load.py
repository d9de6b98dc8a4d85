"""From a directory with an EAGLE head to one that is ready: the fastest form that agrees with the plain one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from engine.batch import Span
from engine.heads.eagle import EagleHead, HeadForward, Said
from engine.heads.formats import EagleFiles, Fit, read_eagle
from engine.heads.fused import FusedHead
from engine.heads.tensors import HeadError
from engine.kernels.native import NativeOps
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.ends import Ends
from engine.model.loader import LoadedModel
from engine.model.packed import can_pack, pack_linears
from engine.model.runner import Kernels, Runner

_TOLERANCE: Final = 6e-2  # see engine.model.check


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """An EAGLE head that fits its target."""

    forward: HeadForward
    fused: FusedHead | None
    """The forward, where it can draw whole drafts."""
    kernels: Kernels | None  # for its attention
    features: Callable[[Tensor], Tensor]  # what it keeps of the taps: [T, parts] -> [T, H]
    taps: tuple[int, ...]
    width: int  # H
    targets: Tensor | None  # see EagleFiles
    kv_shape: LayerShape
    weight_bytes: int


def load_eagle(folder: Path, target: LoadedModel, say: Callable[[str], None]) -> LoadedHead:
    """Load a head for a target. Raises HeadError with a sentence."""
    if not folder.name:
        raise HeadError(
            'a draft of kind "eagle" needs a head that was trained for the target: name its directory'
        )
    ends = target.forward.ends
    files = read_eagle(folder, Fit(ends.embedding.shape[1], target.vocabulary, len(target.shapes)))
    head = EagleHead.of(_sharing(files, ends), ends, target.dtype)
    targets = None if files.targets is None else files.targets.to(target.device)
    weight_bytes = sum(each.numel() * each.element_size() for each in head.parameters())
    native = target.kernels if isinstance(target.kernels, NativeOps) else None
    fused = None if native is None else _fused(head, targets, native, say)
    if fused is None and can_pack(target.dtype, target.device):
        pack_linears(head)
    forward: HeadForward = head if fused is None else fused
    say(f"EAGLE-{files.shape.version} head: {weight_bytes >> 20} MiB, reads hidden states {files.shape.taps}")
    return LoadedHead(
        forward=forward,
        fused=fused,
        kernels=target.kernels,
        features=head.features if fused is None else fused.features,
        taps=files.shape.taps,
        width=files.shape.hidden,
        targets=targets,
        kv_shape=head.kv_shape,
        weight_bytes=weight_bytes if fused is None else fused.weight_bytes + head.own_embedding_bytes,
    )


def _sharing(files: EagleFiles, ends: Ends) -> EagleFiles:
    """Without the copy of the target's embedding that some tools write."""
    own = files.tensors.get("embed_tokens.weight")
    if own is None or not torch.equal(own.to(ends.embedding.device, ends.embedding.dtype), ends.embedding):
        return files
    return files._replace(tensors={k: v for k, v in files.tensors.items() if k != "embed_tokens.weight"})


def _fused(
    head: EagleHead, targets: Tensor | None, native: NativeOps, say: Callable[[str], None]
) -> FusedHead | None:
    """The head in native calls, if it knows the head and agrees with it."""
    if not FusedHead.suits(head, native):
        return None
    fused = FusedHead(head, targets, native)
    error = _difference(head, fused, native)
    if error <= _TOLERANCE:
        return fused
    say(f"not used: fused EAGLE head: its logits differ by {error:.2g} of their spread from the plain one's")
    return None


def _difference(head: EagleHead, fused: FusedHead, native: NativeOps) -> float:
    """The largest between two logits of the same row, as a share of the row's spread: of a text read in two pieces."""
    plain, fast = (_read(head, forward, native) for forward in (head, fused))
    spread = (plain.max(dim=-1).values - plain.min(dim=-1).values).clamp(min=1e-6)
    return float(((fast - plain).abs().max(dim=-1).values / spread).max())


def _read(head: EagleHead, forward: HeadForward, native: NativeOps) -> Tensor:
    """Logits [2, D] float32 after 20 tokens, and after 2 more."""
    pool = BlockPool(2, 16)
    table = BlockTable(pool)
    table.reserve(23)
    dtype = head.embedding.dtype
    runner = Runner(KVMemory({0: head.kv_shape}, 2, 16, dtype, torch.device("cpu"), begin=1), native)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(head.embedding), (23,), generator=random).tolist()
    hidden = head.embedding[tokens] + torch.randn(23, head.shape.hidden, generator=random).to(dtype)
    found = []
    for start, end in ((1, 21), (21, 23)):
        batch = runner.pack([Span(table, start, tokens[start:end], 1)])
        said: Said = forward(
            batch.tokens, hidden[start:end], batch.positions, runner.attention(batch), batch.logit_rows
        )
        found.append(said.logits.float())
    return torch.cat(found)
