"""The model that this daemon serves: where it lies, what it is called, and how its prompts are encoded."""

from dataclasses import dataclass
from pathlib import Path

from specd.config.schema import DraftSection, TargetSection
from specd.http.prompt import PromptEncoder
from specd.models.cache import HashCache, cache_dir
from specd.models.identity import ModelInfo, describe


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Known once the model directory has been read."""

    info: ModelInfo
    encoder: PromptEncoder


def load_served(target: TargetSection, path: Path) -> ServedModel:
    """Read what the daemon needs of a resolved model directory; blocking. Raises `ModelError`."""
    return ServedModel(describe(target, path, HashCache(cache_dir())), PromptEncoder.load(path))


def served_name(target: TargetSection) -> str:
    """The model's name in `/v1/models`, known before the model is read."""
    return target.name or Path(target.path).name


def draft_revision(draft: DraftSection) -> str:
    """The configured one, or one that changes with whatever changes the drafts."""
    if draft.revision:
        return draft.revision
    match draft.kind:
        case "ngram":
            return f"ngram-{draft.ngram_min}-{draft.ngram_max}"
        case "layer-skip":
            layers = "middle" if draft.skip_layers is None else "-".join(map(str, draft.skip_layers))
            return f"layer-skip-{layers}"
        case "none":
            return "none"
