"""Medusa heads of the first version: residual blocks over the target's last hidden state, said by its own lm_head.

Head s guesses the token s + 1 behind the next one (arXiv 2401.10774). Only the blocks are trained and written, so that
the file is small; the lm_head is the target's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor, nn

from engine.train import export, pipeline
from engine.train.corpus import Vocabulary
from engine.train.guess import Guess
from engine.train.job import Job

HEADS: Final = 4
_TRAINED_ON: Final = 8_192
"""Tokens whose logits are told apart in training; the heads themselves can say all."""


class _Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return x + F.silu(self.linear(x))


class Medusa(nn.Module):
    """See the module and engine.train.guess.Steps. One block each."""

    matrix: Tensor
    scale: Tensor

    def __init__(self, matrix: Tensor, scale: Tensor, eps: float, count: int = HEADS) -> None:
        """matrix: [Vd, H], of the target's lm_head; scale: [H], of its final norm."""
        super().__init__()
        self.blocks = nn.ModuleList([_Block(matrix.shape[1]) for _ in range(count)])
        self.register_buffer("matrix", matrix, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self._eps = eps

    def forward(self, aux: Tensor, embedded: Tensor, steps: int) -> Iterator[Guess]:
        """A round that begins at row i - s reads the state of that row, whatever the step."""
        del embedded
        hidden = F.rms_norm(aux.float(), aux.shape[-1:], self.scale, self._eps)
        for step, block in enumerate(self.blocks[:steps]):
            yield Guess(F.pad(block(hidden), (0, 0, step, 0))[:, : hidden.shape[1]], self.matrix)


def layers(count: int) -> tuple[int, ...]:
    """The last one, before the final norm."""
    return (count,)


def draft_vocabulary(vocabulary: int) -> int:
    """Tokens that training tells apart."""
    return min(_TRAINED_ON, vocabulary)


def make(target: Any, vocabulary: Vocabulary) -> Medusa:
    """Heads that begin by repeating what the target says next."""
    config = target.config.get_text_config()
    matrix = target.lm_head.weight.detach().float()[vocabulary.kept]
    return Medusa(matrix, target.model.norm.weight.detach().float(), config.rms_norm_eps)


def write(head: nn.Module, vocabulary: Vocabulary, target: Any, job: Job) -> None:
    """The v1 layout: a list of heads by place, each a block without a linear of its own."""
    del vocabulary
    assert isinstance(head, Medusa)
    blocks = enumerate(head.blocks)
    tensors = {
        f"{i}.0.{name}": each.bfloat16() for i, block in blocks for name, each in block.state_dict().items()
    }
    export.write(Path(job.out), config(target, len(head.blocks), job.name), tensors)


def config(target: Any, count: int, name: str) -> Mapping[str, Any]:
    """What loaders of the v1 layout read."""
    text = target.config.get_text_config()
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": name,
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "medusa_num_heads": count,
        "medusa_num_layers": 1,
        "dtype": "bfloat16",
    }


def train(job: Job) -> None:
    """See engine.train.kinds."""
    pipeline.train(job)
