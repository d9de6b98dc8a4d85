"""The configs in the documentation are taken as they stand, and the README's tour does what it says to its own."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from specd.config.layers import load
from specd.config.schema import Config
from specd.errors import ConfigError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if not page.name.startswith("adding-")]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_page_shows_a_config_that_is_taken(block: str) -> None:
    """Test that keys and values are those of the schema."""
    Config.model_validate(tomllib.loads(block))


@pytest.fixture
def tour(tmp_path: Path) -> Path:
    """The tour's config, in a folder like the one that it is written in."""
    text = re.search(r"^cat > state/tour\.toml <<'EOF'\n(.*?)^EOF$", README, re.MULTILINE | re.DOTALL)
    assert text is not None
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tour.toml").write_text(text[1])
    return tmp_path / "state" / "tour.toml"


def edits() -> list[str]:
    """The tour's edits of its config, in order."""
    return re.findall(r"^sed -i .* state/tour\.toml$", README, re.MULTILINE)


def test_the_tours_edits_do_what_it_says(tour: Path) -> None:
    """Test that each edit changes the config, that the second alone is refused, with the key that was meant, and that
    in the end it is as it was."""
    before, faults, seen = tour.read_text(), [], []
    for number, edit in enumerate(edits(), 1):
        old = tour.read_text()
        subprocess.run(shlex.split(edit), cwd=tour.parents[1], check=True)
        assert tour.read_text() != old, edit
        try:
            config = load(tour, env={}).config
            seen.append((config.policy.k_max, config.model.draft.skip_layers is None))
        except ConfigError as error:
            faults.append((number, str(error)))
    assert seen == [(6, True), (4, True), (4, False), (4, True)]
    ((number, fault),) = faults
    assert number == 2
    assert re.search(r"policy\.k_maxx.*k_max\b", fault)
    assert tour.read_text() == before
