"""The model that this daemon serves: where it lies, what it is called, and how its prompts are encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.api import DraftKind
from specd.config.schema import DraftSection, TargetSection
from specd.http.prompt import PromptEncoder
from specd.models.cache import HashCache, cache_dir
from specd.models.identity import ModelInfo, describe, display_name


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Known once the model directory has been read."""

    info: ModelInfo
    encoder: PromptEncoder


def load_served(target: TargetSection, path: Path) -> ServedModel:
    """Read what the daemon needs of a resolved model directory; blocking. Raises `ModelError`."""
    hashes = HashCache(cache_dir() / "hashes.json")
    return ServedModel(describe(target, path, hashes), PromptEncoder.load(path))


def served_name(target: TargetSection) -> str:
    """The model's name in `/v1/models`, known before the model is read."""
    return display_name(target)


def draft_revision(draft: DraftSection) -> str:
    """The configured one, or one that changes with whatever changes the drafts."""
    if draft.revision:
        return draft.revision
    return "+".join(_revision(draft, kind) for kind in draft.kinds)


def _revision(draft: DraftSection, kind: DraftKind) -> str:
    match kind:
        case "ngram":
            return f"ngram-{draft.ngram_min}-{draft.ngram_max}"
        case "suffix":
            return f"suffix-{draft.suffix_across}"
        case "layer-skip":
            layers = "middle" if draft.skip_layers is None else runs(sorted(set(draft.skip_layers)))
            return f"layer-skip-{layers}"
        case _:
            return kind


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, short: `0..3-7` for 0, 1, 2, 3 and 7. It becomes a label of metrics and alerts."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return "-".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)
