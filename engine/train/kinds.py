"""The kinds of drafts that can be trained, by name. A kind is a module with `train(job)`, imported when asked for."""

from importlib import import_module
from typing import Final, Protocol, cast

from engine.train.errors import TrainError
from engine.train.job import Job


class KindModule(Protocol):
    """What a kind's module provides."""

    def train(self, job: Job) -> None:
        """Do all of it and write the result to `job.out`. Raises TrainError; going on after a kill is its business."""


KINDS: Final = {
    "eagle3": "engine.train.eagle3",
    "medusa": "engine.train.medusa",
    "layer-skip": "engine.train.skip_kind",
}


def load(name: str) -> KindModule:
    """Raises TrainError with the names that there are."""
    if name not in KINDS:
        raise TrainError(f"there is no kind {name!r} to train: there are {', '.join(KINDS)}")
    return cast("KindModule", import_module(KINDS[name]))
