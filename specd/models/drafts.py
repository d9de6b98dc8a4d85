"""What `[model.draft]` names, found: who drafts, from which directories, and what to call it."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from engine.api import DraftKind, DraftSettings
from specd.config.schema import DraftSection
from specd.errors import ModelError
from specd.local_paths import local_path
from specd.models.cache import HashCache
from specd.models.directory import read_config
from specd.models.draft_files import inspect
from specd.models.identity import fingerprint
from specd.models.pair import draft_model, misfit

_HEADS: Final = frozenset({"eagle", "medusa"})
_REVISION_DIGITS: Final = 12

PROOF: Final = "proof.json"
"""Beside a head that was trained here: what the canary said when it was found good."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What stays as it is while the daemon runs; the rest of `[model.draft]` may change."""

    kinds: tuple[DraftKind, ...]
    model: Path | None = None
    model_revision: str = ""
    head: Path | None = None
    head_revision: str = ""
    name: str = ""
    """What the config calls them; empty derives it."""

    @property
    def proposers(self) -> tuple[DraftKind, ...]:
        """Those who draft: nobody of kind "none"."""
        return tuple(kind for kind in self.kinds if kind != "none")

    def settings(self, draft: DraftSection) -> DraftSettings:
        """As the engine takes it."""
        return DraftSettings(
            kinds=self.kinds,
            model_path=str(self.model or ""),
            vocabulary=draft.vocabulary,
            head_path=str(self.head or ""),
            ngram_min=draft.ngram_min,
            ngram_max=draft.ngram_max,
            match_factor=draft.match_factor,
            suffix_bytes=draft.suffix_mib << 20,
            suffix_across=draft.suffix_across,
            skip_layers=draft.skipped,
        )

    def revision(self, draft: DraftSection) -> str:
        """The configured one, or one that changes with whatever changes the drafts."""
        return self.name or "+".join(self._revision(draft, kind) for kind in self.kinds)

    def fingerprints(self, draft: DraftSection) -> tuple[str, ...]:
        """Who drafts, without what a reload may change: lookups by their kind, others with what they are made of."""
        lookups = {"ngram", "suffix"}
        return tuple(kind if kind in lookups else self._revision(draft, kind) for kind in self.proposers)

    def _revision(self, draft: DraftSection, kind: DraftKind) -> str:
        match kind:
            case "ngram":
                return f"ngram-{draft.ngram_min}-{draft.ngram_max}"
            case "suffix":
                return f"suffix-{draft.suffix_across}"
            case "layer-skip":
                layers = "middle" if draft.skipped is None else runs(sorted(set(draft.skipped)))
                return f"layer-skip-{layers}"
            case "model":
                return f"model-{self.model_revision}{'-mapped' * (draft.vocabulary == 'mapped')}"
            case "eagle" | "medusa":
                return f"{kind}-{self.head_revision}"
            case _:
                return kind


def find_drafts(
    draft: DraftSection,
    target: Path,
    hashes: HashCache,
    *,
    trained: Path | None = None,
    before: Path | None = None,
) -> Drafts:
    """Resolve what is named, for the target in this directory. trained: where heads are that were trained here. before:
    the head that drafted last, maybe for another target; it goes on where the config names none and nobody has one for
    this target, if it is of the right sizes. Slow once per model or head. Raises `ModelError`.
    """
    if fault := misfit(draft, target, hashes):
        raise ModelError(fault)
    kinds = draft.kinds
    head = None
    if draft.kind == "auto" or _HEADS.intersection(kinds):
        head = _named(draft) or _known(kinds, target, hashes, trained, before)
    if draft.kind == "auto":
        kinds = ("ngram",) if head is None else ("ngram", _drafts_with(head))
    elif head is None and _HEADS.intersection(kinds):
        raise ModelError(
            "model.draft.head: no head in the package was trained for this target: name a directory with one, make one "
            "with `specd draft train`, or take other kinds"
        )
    model = draft_model(draft)
    return Drafts(
        kinds=kinds,
        model=model,
        model_revision="" if model is None else fingerprint(model, hashes),
        head=head,
        head_revision="" if head is None else _head_fingerprint(head, hashes),
        name=draft.revision,
    )


def _known(
    kinds: Collection[DraftKind],
    target: Path,
    hashes: HashCache,
    trained: Path | None,
    before: Path | None,
) -> Path | None:
    """A head that nobody had to name. It may have to read all of the target's weights."""
    own = [] if trained is None else proven_heads(trained)
    fitting = [head for head in own if not kinds or inspect(head).kind in kinds]
    found = _trained_for(fitting, target, hashes) or shipped_head(target, hashes)
    if found is not None or before is None or unfit(before, target) is not None:
        return found
    return before if not kinds or inspect(before).kind in kinds else None


def unfit(head: Path, target: Path) -> str | None:
    """Why what is in a directory cannot draft for a target, or is no longer there."""
    try:
        return inspect(head).misfit(target)
    except ModelError as error:
        return str(error)


def shipped_head(target: Path, hashes: HashCache) -> Path | None:
    """The head in the package that was trained for this very target, if there is one."""
    return _trained_for(shipped_heads(), target, hashes)


def _trained_for(heads: Sequence[Path], target: Path, hashes: HashCache) -> Path | None:
    for head in heads:
        record = msgspec.json.decode((head / "record.json").read_bytes())
        if _alike(head, target) and record["target_fingerprint"] == fingerprint(target, hashes):
            return head
    return None


def proven_heads(folder: Path) -> list[Path]:
    """Heads that were trained here and found good, the newest first."""
    heads = [proof.parent for proof in folder.glob(f"*/{PROOF}") if proof.with_name("record.json").exists()]
    return sorted(heads, key=lambda head: (head / PROOF).stat().st_mtime_ns, reverse=True)


def shipped_heads() -> list[Path]:
    """All heads in the package."""
    heads = Path(str(resources.files("engine"))) / "heads"
    return sorted(record.parent for record in heads.glob("*/record.json"))


def _alike(head: Path, target: Path) -> bool:
    """Whether a target has the head's sizes: all others need not be hashed to know that it does not fit."""
    layer, config = read_config(head).get("transformer_layer_config", {}), read_config(target)
    return all(
        layer.get(size, config.get(size)) == config.get(size) for size in ("hidden_size", "vocab_size")
    )


def require_head(head: Path, target: Path, draft: DraftSection) -> None:
    """Raises `ModelError` where what is in a directory cannot draft for the target, or is not to by the config."""
    head = local_path(str(head))
    kind = _drafts_with(head)
    if draft.kind != "auto" and kind not in draft.kinds:
        raise ModelError(
            f"model.draft.kind = {list(draft.kinds)} has nobody who drafts with a head of kind {kind}: put "
            f'"{kind}" into it, and restart specd'
        )
    if reason := inspect(head).misfit(target):
        raise ModelError(f"{head} cannot draft for {target}: {reason}")


def _named(draft: DraftSection) -> Path | None:
    if not draft.head:
        return None
    head = local_path(draft.head)
    read_config(head)
    return head


def _drafts_with(head: Path) -> DraftKind:
    """Whose head it is."""
    found = inspect(head).kind
    if found == "model":
        raise ModelError(
            f'model.draft.head: {head} holds a whole model: name it with model.draft.model, and kind = "model"'
        )
    return found


def _head_fingerprint(head: Path, hashes: HashCache) -> str:
    """Of all its weights, and of the config that says how they are used."""
    files = sorted(file for file in head.iterdir() if file.suffix in {".safetensors", ".bin", ".pt"})
    if not files:
        raise ModelError(f"model.draft.head: {head} holds no weights: .safetensors, .bin or .pt")
    found = hashes.sha256([*files, head / "config.json"])
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:_REVISION_DIGITS]


def runs(numbers: Sequence[int]) -> str:
    """Ascending numbers, short: `0..3-7` for 0, 1, 2, 3 and 7. It becomes a label of metrics and alerts."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return "-".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)
