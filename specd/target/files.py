"""What a target section names, found: the target, what drafts for it, and what is to be doubted of the two."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from policies.profile import Profile
from specd.config.schema import Config, DraftSection
from specd.config.target import TargetSection
from specd.errors import ModelError, UserError
from specd.models.cache import hashes
from specd.models.directory import read_config
from specd.models.doubts import alike, doubts_about
from specd.models.drafts import Drafts, find_drafts
from specd.models.profile import find_profile
from specd.models.resolve import resolve_target
from specd.store import heads_dir

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Files:
    """What a target section names, found."""

    path: Path
    drafts: Drafts
    profile: Profile | None
    doubts: tuple[str, ...] = ()
    """Sentences on why the drafts may not fit the target, though they can be had with it."""
    last_head: Path | None = None
    """The head that drafts; or the one that drafted last, where none does for this target."""


class DraftChoice(NamedTuple):
    """What of `[model.draft]` changes as the target does: with another engine."""

    head: str = ""
    revision: str = ""

    @classmethod
    def of(cls, draft: DraftSection) -> Self:
        """As the config has it."""
        return cls(draft.head, draft.revision)

    def within(self, draft: DraftSection) -> DraftSection:
        """The section with this choice."""
        return draft.model_copy(update=self._asdict())


def find_files(
    config: Config,
    target: TargetSection,
    choice: DraftChoice,
    head: Path | None = None,
    *,
    updating: bool = False,
) -> Files:
    """head: that drafted last; it goes on where nothing in the package fits better. updating: while another serves.
    Blocking; slow once per model. Raises `UserError`.
    """
    draft = choice.within(config.drafting)
    path = resolve_target(target.path, ours=config.engine.backend == "specd")
    drafts = find_drafts(draft, path, hashes(), trained=heads_dir(config.store), before=head)
    doubts = tuple(doubts_about(drafts, path, hashes(), before=head if draft.kind == "auto" else None))
    if doubts and draft.on_mismatch == "refuse":
        raise ModelError(
            f"{doubts[0]}. model.draft.on_mismatch = refuse does not let them be served together"
        )
    profile = _profile(config, path, drafts, updating=updating)
    return Files(path, drafts, profile, doubts, drafts.head or head)


def _profile(config: Config, path: Path, drafts: Drafts, *, updating: bool) -> Profile | None:
    """The one that the config names. An update that it does not hold for goes on without it."""
    try:
        return find_profile(config, path, drafts, hashes())
    except UserError as error:
        if not updating:
            raise
        log.warning("%s; until then costs are learned as the target serves", error)
        return None


def cost_alike(one: Files, other: Files) -> bool:
    """Whether steps and drafts of both cost the same: what differs is in their weights at most."""
    if not alike(one.path, other.path) or one.drafts.kinds != other.drafts.kinds:
        return False
    heads = one.drafts.head, other.drafts.head
    return heads[0] == heads[1] or (None not in heads and _sizes(heads[0]) == _sizes(heads[1]))


def _sizes(head: Path | None) -> object:
    return head and read_config(head)
