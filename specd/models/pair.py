"""Whether target and draft go together, told from their files alone."""

from pathlib import Path

from engine.pairing.pair import misfit as model_misfit
from engine.skipset import misfit as skip_misfit
from specd.config.schema import DraftSection
from specd.errors import ModelError
from specd.models.architecture import modules_reason
from specd.models.cache import HashCache
from specd.models.directory import read_config
from specd.models.identity import fingerprint
from specd.models.resolve import resolve_target


def misfit(draft: DraftSection, target: Path, hashes: HashCache) -> str | None:
    """Why the draft cannot be had with the model in this directory, or None. Raises `ModelError`.

    With a `skip_file` it asks which model that is, which takes a while when its weights are new to `hashes`.
    """
    found = draft.skip_set
    if found is not None and (reason := skip_misfit(found, fingerprint(target, hashes))):
        return f"model.draft.skip_file: {reason}"
    config = read_config(target)
    if "mtp" in draft.kinds and (reason := modules_reason(str(config.get("model_type")))):
        return f"model.draft.kind: {reason}"
    layers = config.get("num_hidden_layers")
    skipped = draft.skipped or ()
    if not isinstance(layers, int) or all(0 <= layer < layers for layer in skipped):
        return None
    return f"model.draft.skip_layers: the target has layers 0 to {layers - 1}, not all of {list(skipped)}"


def draft_model(draft: DraftSection, *, download: bool = True) -> Path | None:
    """Where the draft model lies, if one is asked for. Raises `ModelError`."""
    if "model" not in draft.kinds:
        return None
    try:
        return resolve_target(draft.model, download=download)
    except ModelError as error:
        raise ModelError(
            "\n".join(f"model.draft.model: {line}" for line in str(error).splitlines())
        ) from None


def mismatch(draft: DraftSection, target: Path) -> str | None:
    """Why the draft model cannot draft for the model in this directory, or None. Slow. Raises `ModelError`."""
    path = draft_model(draft, download=False)
    if path is None:
        return None
    reason = model_misfit(target, path, mapped=draft.vocabulary == "mapped")
    return None if reason is None else f"model.draft.model: {reason}"
