"""Whether target and draft go together, told from their files alone."""

from pathlib import Path

from specd.config.schema import DraftSection
from specd.models.directory import read_config


def misfit(draft: DraftSection, target: Path) -> str | None:
    """Why the draft cannot be had with the model in this directory, or None. Raises `ModelError`."""
    layers = read_config(target).get("num_hidden_layers")
    skipped = draft.skip_layers or ()
    if not isinstance(layers, int) or all(0 <= layer < layers for layer in skipped):
        return None
    return f"model.draft.skip_layers: the target has layers 0 to {layers - 1}, not all of {list(skipped)}"
