"""The training itself: batches, optimisers, a schedule that ends in time, checkpoints to resume from.

Processes of one thread each train the same head on batches of their own and add up their gradients once a step: beside
other work on the machine that wastes less than threads that wait for each other in every operation.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.train.corpus import Batch, Corpus, Vocabulary
from engine.train.loss import LawLoss


class Plan(NamedTuple):
    """How to train. It ends with the minutes or the rows, whichever comes first."""

    minutes: float
    rows: int = 1 << 40
    """Of texts, seen by all processes together, each epoch's counted again."""
    seed: int = 0
    steps: int = 4
    """Of the head's own output, the first from the target's states included."""
    decay: float = 0.85
    """Weight of each step's loss against the one's before it."""
    early: float = 0.3
    """So much of the training goes by with two steps: the later ones learn nothing while the first are poor."""
    batch_rows: int = 1_536
    matrix_rate: float = 3e-3
    rate: float = 1e-3
    warm_up: float = 0.03
    narrow: bool = True
    """Matrix products in bfloat16."""


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    rows: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, list[float]]] = field(default_factory=list)
    """(rows, mean loss by step of the head) since the last entry."""

    def done(self, plan: Plan) -> float:
        """How much of the plan, in [0, 1]."""
        return min(1.0, max(self.rows / plan.rows, self.seconds / (60 * plan.minutes)))


@dataclass(frozen=True, slots=True)
class Workers:
    """This process among those that train together."""

    rank: int = 0
    count: int = 1

    def join(self, meeting: Path) -> None:
        """Find the others, who name the same file."""
        if self.count > 1:
            place = f"file://{meeting.resolve()}"
            dist.init_process_group("gloo", init_method=place, rank=self.rank, world_size=self.count)

    def add_up(self, values: Tensor) -> None:
        """In place, over all processes."""
        if self.count > 1:
            dist.all_reduce(values)


ALONE: Final = Workers()


class Trainer:
    """One head in training."""

    def __init__(
        self,
        head: nn.Module,
        corpus: Corpus,
        *,
        vocabulary: Vocabulary,
        embedding: Tensor,
        plan: Plan,
        workers: Workers = ALONE,
    ) -> None:
        """head: see engine.train.guess.Steps; buffers are not trained. embedding: [V, H], of the target."""
        self.head = head
        self.progress = Progress()
        self._corpus = corpus
        self._vocabulary = vocabulary
        self._embedding = embedding
        self.plan = plan
        self._workers = workers
        self._parameters = list(head.parameters())
        self._optimisers = _optimisers(head, plan)
        self._recent: list[list[float]] = []

    def resume(self, path: Path) -> bool:
        """Go on from a checkpoint, if there is one."""
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.head.load_state_dict(state["head"])
        for optimiser, own in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(own)
        self.progress = Progress(**state["progress"])
        return True

    def save(self, path: Path) -> None:
        """In one step: a checkpoint that is there is whole."""
        partial = path.with_suffix(".partial")
        state = {
            "head": self.head.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "progress": vars(self.progress),
        }
        torch.save(state, partial)
        partial.rename(path)

    def run(self) -> Iterator[Progress]:
        """Train to the end of the plan; yields after every step, the same in all processes."""
        batches = self._corpus.batches(self.plan.batch_rows, self.plan.seed)
        first = self.progress.step * self._workers.count + self._workers.rank
        begun = time.monotonic() - self.progress.seconds
        for places in itertools.islice(batches, first, None, self._workers.count):
            if self.progress.done(self.plan) >= 1:
                return
            batch = self._corpus.batch(places, self._vocabulary)
            self._step(batch, sum(place.rows for place in places), lambda: time.monotonic() - begun)
            yield self.progress

    def _step(self, batch: Batch, rows: int, clock: Callable[[], float]) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        losses = self._losses(batch)
        weights = [self.plan.decay**step for step in range(len(losses))]
        torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum().div(
            sum(weights)
        ).backward()  # type: ignore[no-untyped-call]
        shared = torch.tensor([rows, clock() * (self._workers.rank == 0), *(loss.item() for loss in losses)])
        self._exchange(shared)
        self.progress.step += 1
        self.progress.rows += int(shared[0])
        self.progress.seconds = float(shared[1])
        self._recent.append([loss / self._workers.count for loss in shared[2:].tolist()])
        self._descend()

    def _losses(self, batch: Batch) -> list[Tensor]:
        """One for each step of the head, a mean over its rows."""
        embedded, losses = self._embedding[batch.tokens], []
        with torch.autocast("cpu", torch.bfloat16, enabled=self.plan.narrow):
            for step, guess in enumerate(self.head(batch.aux, embedded, self._own_steps)):
                weights = batch.weights.clone()
                weights[:, :step] = 0
                counted = weights > 0
                total = LawLoss.apply(  # type: ignore[no-untyped-call]
                    guess.rows[counted].to(self._dtype), guess.matrix, batch.ids[counted], batch.probs[counted],
                    weights[counted],
                )  # fmt: skip
                losses.append(total / weights.sum())
        return losses

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.plan.narrow else torch.float32

    @property
    def _own_steps(self) -> int:
        early = self.progress.done(self.plan) < self.plan.early
        return min(2, self.plan.steps) if early else self.plan.steps

    def _exchange(self, shared: Tensor) -> None:
        """Mean gradients and summed numbers, over all processes, in one message."""
        if self._workers.count == 1:
            return
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        flat = torch.cat([shared, *(gradient.flatten() for gradient in gradients)])
        self._workers.add_up(flat)
        shared.copy_(flat[: len(shared)])
        at = len(shared)
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient).div(self._workers.count))
            at += gradient.numel()

    def _descend(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        scale = schedule(self.progress.done(self.plan), self.plan.warm_up)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * scale
            optimiser.step()

    def note(self) -> list[float]:
        """Put the mean losses since the last note on the curve; by step of the head."""
        if not self._recent:
            return []
        means = [sum(each) / len(self._recent) for each in zip(*self._recent, strict=False)]
        self.progress.curve.append((self.progress.rows, [round(mean, 4) for mean in means]))
        self._recent = []
        return means


def schedule(done: float, warm_up: float) -> float:
    """The share of the peak rate: a linear rise, then half a cosine down to a fiftieth."""
    if done < warm_up:
        return (done + 1e-3) / (warm_up + 1e-3)
    return 0.02 + 0.49 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up)))


def _optimisers(head: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between hidden states, AdamW for what reads or gives single tokens and for the scales."""
    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and not name.startswith("lm_head")]
    others = [p for name, p in head.named_parameters() if p.ndim != 2 or name.startswith("lm_head")]
    muon = torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)
    for optimiser in (muon, adam):
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]
