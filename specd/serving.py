"""The models that this daemon serves: where they lie, what they are called, and how prompts are encoded."""

from dataclasses import dataclass
from pathlib import Path

from specd.config.target import TargetSection
from specd.http.prompt import PromptEncoder
from specd.models.cache import hashes
from specd.models.drafts import Drafts
from specd.models.identity import ModelInfo, describe, display_name


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Known once the model directory has been read."""

    info: ModelInfo
    encoder: PromptEncoder
    drafts: Drafts


def load_served(
    target: TargetSection, path: Path, drafts: Drafts, serving: ServedModel | None = None
) -> ServedModel:
    """Read what the daemon needs of a resolved model directory; blocking. serving: what it is to replace, of which it
    may share the tokenizer. Raises `ModelError`.
    """
    like = None if serving is None else serving.encoder
    return ServedModel(describe(target, path, hashes()), PromptEncoder.load(path, like), drafts)


def served_name(target: TargetSection) -> str:
    """The model's name in `/v1/models`, known before the model is read."""
    return display_name(target)
