"""Whether target and draft go together, told from their files alone."""

from pathlib import Path

from engine.skipset import misfit as skip_misfit
from specd.config.schema import DraftSection
from specd.models.cache import HashCache
from specd.models.directory import read_config
from specd.models.identity import fingerprint


def misfit(draft: DraftSection, target: Path, hashes: HashCache) -> str | None:
    """Why the draft cannot be had with the model in this directory, or None. Raises `ModelError`.

    With a `skip_file` it asks which model that is, which takes a while when its weights are new to `hashes`.
    """
    found = draft.skip_set
    if found is not None and (reason := skip_misfit(found, fingerprint(target, hashes))):
        return f"model.draft.skip_file: {reason}"
    layers = read_config(target).get("num_hidden_layers")
    skipped = draft.skipped or ()
    if not isinstance(layers, int) or all(0 <= layer < layers for layer in skipped):
        return None
    return f"model.draft.skip_layers: the target has layers 0 to {layers - 1}, not all of {list(skipped)}"
