"""A draft that cannot win, on prompts that cannot be guessed: does the policy say so, and what does that cost?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from benchmarks.bar import Bar
from benchmarks.regret import measured
from benchmarks.rivals import ADAPTIVE, PLAIN, Rivals
from benchmarks.steady import Ask, Shown, steps_weight, together
from engine.api import DraftSettings

RUNNING: Final = (1, 4, 16)
_BATCHES: Final = {1: 4, 4: 2}
_PROMPT: Final = 150  # tokens of a prompt, about
MOST: Final = 16  # prompts of a measurement


@dataclass(frozen=True, slots=True)
class Poor:
    """One concurrency: tokens per second, and the share of rounds that had a draft."""

    running: int
    rates: dict[str, float]
    first: float
    """Share of rounds with a draft when the policy met this draft for the first time."""
    drafting: float
    """The same in the rounds that count."""

    @property
    def against_plain(self) -> float:
        """All turns of both."""
        return self.rates[ADAPTIVE] / self.rates[PLAIN]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "running": self.running,
            "rates": self.rates,
            "drafting_at_first": self.first,
            "drafting": self.drafting,
            "against_plain": self.against_plain,
        }


def shuffled(draft: DraftSettings, folder: Path) -> DraftSettings:
    """The head alone, its weights in disorder, in a folder that is made."""
    source = Path(draft.head_path)
    folder.mkdir(parents=True, exist_ok=True)
    dice = torch.Generator().manual_seed(0)
    for file in source.iterdir():
        target = folder / file.name
        if file.suffix != ".safetensors":
            target.write_bytes(file.read_bytes())
            continue
        weights = {name: _in_disorder(tensor, dice) for name, tensor in load_file(file).items()}
        save_file(weights, target)
    return DraftSettings(kinds=("eagle",), head_path=str(folder))


def _in_disorder(tensor: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=dice)].view_as(tensor)


def weight(running: int, tokens: int) -> float:
    """Of one measurement, in rows of a prompt."""
    return _BATCHES.get(running, 1) * (running * _PROMPT + steps_weight(tokens, running))


def total_weight(tokens: int, repeats: int, running: Sequence[int]) -> float:
    """Of all."""
    return sum((1 + 2 * repeats) * weight(n, tokens) for n in running)


@dataclass(frozen=True, slots=True)
class PoorDraft:
    """The measurement. prompts: creative ones, `MOST` of them."""

    rivals: Rivals
    prompts: Sequence[Ask]
    tokens: int
    repeats: int
    running: Sequence[int]
    bar: Bar

    def measure(self) -> list[Poor]:
        """Every concurrency."""
        return [self._at(running) for running in self.running]

    def _at(self, running: int) -> Poor:
        first = self._measured((ADAPTIVE,), running, 0)[ADAPTIVE]
        rounds = [self._measured((PLAIN, ADAPTIVE), running, turn) for turn in range(1, self.repeats + 1)]
        shown = {name: together(each[name] for each in rounds) for name in (PLAIN, ADAPTIVE)}
        rates = {name: each.rate for name, each in shown.items()}
        return Poor(running, rates, first.drafting, shown[ADAPTIVE].drafting)

    def _measured(self, names: Sequence[str], running: int, turn: int) -> dict[str, Shown]:
        wanted = self.prompts[: running * _BATCHES.get(running, 1)]
        return measured(
            self.bar,
            f"poor draft, {running} running, round {turn}",
            len(names) * weight(running, self.tokens),
            lambda: self.rivals.shown(names, wanted, running, self.tokens),
        )
