"""Proposers by name."""

from collections.abc import Callable, Sequence

from engine.api import DraftSettings
from engine.draft.base import NO_DRAFT, Ask, Draft, Proposer
from engine.draft.layer_skip import LayerSkipProposer, default_skip
from engine.draft.ngram import NgramProposer
from engine.model.loader import LoadedModel
from engine.model.runner import Runner


class NoProposer:
    """Never drafts."""

    name = "none"
    cost = 0.0

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer."""
        return [NO_DRAFT for _ in asks]

    def forget(self, request: str) -> None:
        """See Proposer."""


class DraftSettingsError(ValueError):
    """The draft settings do not fit the model; the message says how."""


def make_proposer(settings: DraftSettings, target: LoadedModel, runner: Runner) -> Proposer:
    """The proposer that the settings name. Raises DraftSettingsError."""
    makers: dict[str, Callable[[], Proposer]] = {
        "none": NoProposer,
        "ngram": lambda: NgramProposer(settings.ngram_min, settings.ngram_max),
        "layer-skip": lambda: LayerSkipProposer(target, runner, _skip(settings, len(target.shapes))),
    }
    return makers[settings.kind]()


def _skip(settings: DraftSettings, layers: int) -> tuple[int, ...]:
    if settings.skip_layers is None:
        return default_skip(layers)
    outside = [i for i in settings.skip_layers if not 0 <= i < layers]
    if outside:
        raise DraftSettingsError(f"skip_layers names {outside}, but the model has layers 0 to {layers - 1}")
    return settings.skip_layers
