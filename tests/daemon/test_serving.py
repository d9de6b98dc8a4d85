"""What the pair that is served is called."""

import pytest

from specd.config.schema import DraftSection
from specd.serving import draft_revision


@pytest.mark.parametrize(
    ("draft", "revision"),
    [
        (DraftSection(), "ngram-2-5"),
        (DraftSection(ngram_max=3), "ngram-2-3"),
        (DraftSection(kind="layer-skip"), "layer-skip-middle"),
        (DraftSection(kind="layer-skip", skip_layers=(4,)), "layer-skip-4"),
        (DraftSection(kind="layer-skip", skip_layers=(7, 0, 1, 2, 3, 9, 8)), "layer-skip-0..3-7..9"),
        (DraftSection(kind="layer-skip", skip_layers=(0, 3)), "layer-skip-0-3"),
        (DraftSection(kind="none"), "none"),
        (DraftSection(kind="none", revision="r7"), "r7"),
    ],
)
def test_draft_revision_follows_what_changes_the_drafts(draft: DraftSection, revision: str) -> None:
    """Test that each draft has a revision of its own, short enough for a label even when most layers are left out."""
    assert draft_revision(draft) == revision
