"""The target's own multi-token-prediction module drafts, as an EAGLE head does."""

from collections.abc import Callable

from engine.api import DraftSettings
from engine.draft.eagle import EaglePart
from engine.heads.mtp import load_mtp
from engine.model.loader import LoadedModel


def load_part(settings: DraftSettings, target: LoadedModel, say: Callable[[str], None]) -> EaglePart:
    """The module in the target's files. Raises HeadError."""
    del settings  # it lies where the target does
    return EaglePart(load_mtp(target, say), target, "mtp")
