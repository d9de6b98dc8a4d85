"""A draft model, loaded as the target is and compared with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from engine.api import DraftSettings
from engine.available import available_bytes, weights_shortage
from engine.draft.errors import DraftSettingsError
from engine.draft.features import Reads
from engine.draft.mapped import MappedTokens, MappedVocabulary
from engine.draft.model import WIDTHS, ModelProposer
from engine.draft.reading import Reader, SameTokens
from engine.draft.vocabulary import SameVocabulary, Vocabulary
from engine.kv.memory import KVMemory
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.model.support import UnsupportedModelError
from engine.pairing.pair import other_tokenizer, shared_tokens, unlike
from engine.pairing.shared import SharedTokens
from engine.pairing.tokenizers import PairingError

# Rows of a prompt that take the target about a step, and what of the draft's is computed at a time at most.
_ROWS_OF_A_STEP: Final = 32
_MOST_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class ModelPart:
    """See engine.draft.registry.Part."""

    target: LoadedModel
    draft: LoadedModel
    shared: SharedTokens | None = None
    """Of a draft with another tokenizer."""
    reads: Reads | None = None

    @property
    def weight_bytes(self) -> int:
        """As the forward holds them."""
        return self.draft.weight_bytes

    @property
    def rows_at_once(self) -> int:
        """The rows of one level."""
        return WIDTHS[-1]

    @property
    def bytes_per_position(self) -> int:
        """Of its own keys and values."""
        return self.draft.bytes_per_position

    def proposer(self, memory: KVMemory, runner: Runner) -> ModelProposer:  # noqa: ARG002
        """See Part."""
        draft = self.draft
        own = KVMemory(draft.shapes, memory.scrap, memory.block_size, draft.dtype, draft.device)
        reader, vocabulary = self._tongue(memory)
        cost = draft.weight_bytes / self.target.weight_bytes  # a step of few rows is as long as its weights
        return ModelProposer(
            draft,
            own,
            reader,
            vocabulary,
            cost=cost,
            catch_up=min(max(int(_ROWS_OF_A_STEP / cost), _ROWS_OF_A_STEP), _MOST_ROWS),
        )

    def _tongue(self, memory: KVMemory) -> tuple[Reader, Vocabulary]:
        """How it reads the target's texts, and speaks the target's tokens."""
        size = self.target.vocabulary
        if self.shared is not None:
            mapped = MappedVocabulary(self.shared, size, self.draft.device)
            return MappedTokens(self.shared, memory.scrap, memory.block_size), mapped
        same = SameVocabulary(size, self.draft.vocabulary)
        return SameTokens(memory.block_size, same), same


def load_model(settings: DraftSettings, target: LoadedModel, say: Callable[[str], None]) -> ModelPart:
    """The model that the settings name. Raises DraftSettingsError."""
    if not settings.model_path:
        raise DraftSettingsError('drafts of kind "model" need model.draft.model: a smaller model')
    path = Path(settings.model_path)
    shared = _compared(target, path, mapped=settings.vocabulary == "mapped")
    shortage = weights_shortage(path, available_bytes(target.device))
    if shortage is not None:
        raise DraftSettingsError(f"model.draft.model: {shortage}")
    draft = _loaded(path, target, lambda line: say(f"draft model: {line}"))
    if shared is not None:
        say(f"draft model: {len(shared.targets)} of its tokens are the target's, and it drafts with these")
    if draft.reach < target.max_context:
        say(
            f"draft model: its context is {draft.max_context} tokens and the target's is {target.max_context}: "
            "what is longer is not drafted for by it"
        )
    return ModelPart(target, draft, shared)


def _compared(target: LoadedModel, path: Path, *, mapped: bool) -> SharedTokens | None:
    """What their tokenizers share, where they need not be the same."""
    reason = unlike(target.path, path, mapped=mapped)
    if reason is not None:
        raise DraftSettingsError(f"model.draft.model: {reason}")
    try:
        shared = shared_tokens(target.path, path) if mapped else None
        reason = other_tokenizer(target.path, path) if shared is None else shared.shortage
    except PairingError as fault:
        reason = str(fault)
    if reason is not None:
        raise DraftSettingsError(f"model.draft.model: {reason}")
    return shared


def _loaded(path: Path, target: LoadedModel, say: Callable[[str], None]) -> LoadedModel:
    try:
        return load(path, target.dtype, target.device, say, cache=target.cache)
    except UnsupportedModelError as fault:
        raise DraftSettingsError(f"model.draft.model: {fault}") from fault
    except (
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        SafetensorError,
    ) as fault:  # how torch and transformers refuse a directory
        said = f"{path} could not be loaded: {type(fault).__name__}: {fault}"
        raise DraftSettingsError(f"model.draft.model: {said}") from fault
