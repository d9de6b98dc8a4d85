"""Proposers by name: what each needs beside the target, and how it is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from engine.api import DraftKind, DraftSettings
from engine.draft import eagle, medusa, mtp
from engine.draft.base import Keeper, Proposer
from engine.draft.errors import DraftSettingsError
from engine.draft.features import Reads
from engine.draft.layer_skip import LayerSkipProposer, default_skip
from engine.draft.model_part import load_model
from engine.draft.ngram import NgramProposer
from engine.draft.roster import Roster
from engine.draft.suffix import SuffixProposer
from engine.kv.memory import KVMemory
from engine.model.loader import LoadedModel
from engine.model.runner import Runner


class Part(Protocol):
    """What a kind of proposer needs beside the target: a draft model, a head. Loaded before memory is shared out."""

    @property
    def weight_bytes(self) -> int:
        """As they are held."""

    @property
    def bytes_per_position(self) -> int:
        """Of a cache of its own. What it reads of the target is counted apart."""

    @property
    def rows_at_once(self) -> int:
        """Rows of logits that a draft of a text holds at the same time."""

    @property
    def reads(self) -> Reads | None:
        """What is to be kept of the target's forward for it."""

    def proposer(self, memory: KVMemory, runner: Runner) -> Keeper:
        """Made once. memory, runner: the target's; a cache of its own has as many blocks, under the same tables."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All that the drafts of an engine need beside the target."""

    loaded: Mapping[DraftKind, Part] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights of draft models and heads."""
        return sum(part.weight_bytes for part in self.loaded.values())

    @property
    def rows_at_once(self) -> int:
        """See Part. One proposer drafts after the other."""
        return max((part.rows_at_once for part in self.loaded.values()), default=0)

    @property
    def reads(self) -> dict[str, Reads]:
        """What is kept of the target's forward, by kind."""
        return {kind: part.reads for kind, part in self.loaded.items() if part.reads is not None}

    def bytes_per_position(self, itemsize: int) -> int:
        """Memory of one position of a text, beside the target's keys and values. itemsize: of the target's dtype."""
        own = sum(part.bytes_per_position for part in self.loaded.values())
        return own + sum(reads.width * itemsize for reads in self.reads.values())


@dataclass(frozen=True, slots=True)
class Bench:
    """What proposers are made of."""

    settings: DraftSettings
    target: LoadedModel
    memory: KVMemory
    runner: Runner


# Those that need nothing of a target but its text, its tokenizer or its layers.
_FOR_ENCODER_DECODERS: Final = {"none", "ngram", "suffix", "layer-skip", "model"}
LoadPart = Callable[[DraftSettings, LoadedModel, Callable[[str], None]], Part]
_PARTS: Final[Mapping[DraftKind, LoadPart]] = {
    "eagle": eagle.load_part,
    "medusa": medusa.load_part,
    "model": load_model,
    "mtp": mtp.load_part,
}
_MAKERS: Final[Mapping[DraftKind, Callable[[Bench], Proposer]]] = {
    "ngram": lambda bench: NgramProposer(bench.settings),
    "suffix": lambda bench: SuffixProposer(bench.settings),
    "layer-skip": lambda bench: LayerSkipProposer(
        bench.target, bench.runner, _skip(bench.settings, len(bench.target.shapes))
    ),
}

_READS: Final[Mapping[DraftKind, tuple[str, ...]]] = {
    "ngram": ("ngram_min", "ngram_max", "match_factor"),
    "suffix": ("match_factor", "suffix_bytes", "suffix_across"),
    "layer-skip": ("skip_layers",),
}
"""The settings that a proposer is made of: while these stay, so does what it has learned."""


def load_parts(settings: DraftSettings, target: LoadedModel, say: Callable[[str], None]) -> Parts:
    """Load draft models and heads, and check them against the target. Raises DraftSettingsError."""
    unfit = [kind for kind in settings.kinds if kind not in _FOR_ENCODER_DECODERS]
    if target.start and unfit:
        raise DraftSettingsError(
            f'drafts of kind "{unfit[0]}" go on from what a decoder-only target has understood, and '
            f'{target.model_type} has an encoder: take "model" with a smaller one of its family'
        )
    return Parts({kind: _PARTS[kind](settings, target, say) for kind in settings.kinds if kind in _PARTS})


class Proposers:
    """Makes rosters. What was made of a part stays as it is when settings change, and so does a proposer none of whose
    own settings has changed.
    """

    def __init__(self, parts: Parts, target: LoadedModel, memory: KVMemory, runner: Runner) -> None:
        self._bench = (target, memory, runner)
        self._of_parts = {kind: part.proposer(memory, runner) for kind, part in parts.loaded.items()}
        self._of_settings: dict[DraftKind, tuple[list[object], Proposer]] = {}

    def roster(self, settings: DraftSettings) -> Roster:
        """Those that the settings name, in that order. Raises DraftSettingsError."""
        made = {kind: self._make(kind, settings) for kind in settings.kinds if kind in _MAKERS}
        self._of_settings = made
        proposers = {**self._of_parts, **{kind: proposer for kind, (_, proposer) in made.items()}}
        return Roster([proposers[kind] for kind in settings.kinds if kind != "none"])

    def distrust(self, blocks: Sequence[int]) -> None:
        """See Keeper. Those who do not draft now keep what they have too."""
        for keeper in self._of_parts.values():
            keeper.distrust(blocks)

    def _make(self, kind: DraftKind, settings: DraftSettings) -> tuple[list[object], Proposer]:
        """A proposer and the settings that it was made of: the one there is, if these are the same."""
        values = [getattr(settings, name) for name in _READS[kind]]
        known = self._of_settings.get(kind)
        if known is not None and known[0] == values:
            return known
        return values, _MAKERS[kind](Bench(settings, *self._bench))


def _skip(settings: DraftSettings, layers: int) -> tuple[int, ...]:
    if settings.skip_layers is None:
        return default_skip(layers)
    outside = [i for i in settings.skip_layers if not 0 <= i < layers]
    if outside:
        raise DraftSettingsError(f"skip_layers names {outside}, but the model has layers 0 to {layers - 1}")
    return settings.skip_layers
