"""The layers that a search found are taken from its file, for the target that it searched for and no other."""

from pathlib import Path

import pytest
from msgspec import structs

from engine.skipset import SkipSet, read_skip_set
from specd.cli import main
from specd.config.reload import plan_reload
from specd.config.schema import Config, DraftSection
from specd.errors import ModelError
from specd.models.cache import HashCache
from specd.models.drafts import Drafts, find_drafts
from specd.models.identity import fingerprint
from tests.daemon.conftest import write_served_model

FOUND = SkipSet(
    target="",
    layers=4,
    skip=(1, 2),
    examined=[100, 80],
    accepted=[80, 60],
    cost=0.6,
    k=2,
    speedup=1.1,
    seed=0,
    texts="builtin",
    tokens=2000,
    command="specd draft train --kind layer-skip",
)


@pytest.fixture
def hashes(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "hashes.json")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_served_model(tmp_path / "model")


def test_a_skip_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = FOUND.write(tmp_path)
    assert read_skip_set(path) == read_skip_set(tmp_path) == FOUND
    assert FOUND.acceptance == [0.8, 0.75]


def test_the_engine_gets_the_layers_of_the_file(tmp_path: Path, target: Path, hashes: HashCache) -> None:
    path = structs.replace(FOUND, target=fingerprint(target, hashes)).write(tmp_path)
    draft = DraftSection(kind="layer-skip", skip_file=path)
    drafts = find_drafts(draft, target, hashes)
    assert drafts.settings(draft).skip_layers == (1, 2)
    assert drafts.revision(draft) == "layer-skip-1..2"


def test_a_reload_takes_the_file_as_it_is_now(tmp_path: Path) -> None:
    """Test that its key is hot, and that a config keeps what it has read until the next reload."""
    path = FOUND.write(tmp_path)
    old, new = (Config.model_validate({"model": {"draft": each}}) for each in ({}, {"skip_file": path}))
    assert [change.key for change in plan_reload(old, new)] == ["model.draft.skip_file"]
    structs.replace(FOUND, skip=(3,)).write(tmp_path)
    again = Config.model_validate({"model": {"draft": {"skip_file": path}}})
    drafts = Drafts(("layer-skip",))
    assert drafts.settings(new.model.draft).skip_layers == (1, 2)
    assert drafts.settings(again.model.draft).skip_layers == (3,)


def test_a_file_for_another_target_is_refused(
    tmp_path: Path, target: Path, hashes: HashCache, capsys: pytest.CaptureFixture[str]
) -> None:
    path = structs.replace(FOUND, target="0123456789ab").write(tmp_path)
    said = (
        f"model.draft.skip_file: the layers were searched for target 0123456789ab, and this one is "
        f"{fingerprint(target, hashes)}: search again with `specd draft train --kind layer-skip`, or unset it"
    )
    with pytest.raises(ModelError) as refused:
        find_drafts(DraftSection(kind="layer-skip", skip_file=path), target, hashes)
    assert str(refused.value) == said
    config = tmp_path / "specd.toml"
    config.write_text(f'[model]\ntarget.path = "{target}"\ndraft.skip_file = "{path}"\n')
    assert main(["check", "-c", str(config)]) == 2
    assert capsys.readouterr().err.splitlines() == [said]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is no skip set of ours: Input data was truncated"),
        ('{"kind": "layer-skip"}', "is no skip set of ours: Object missing required field `target`"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_fault_of_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, fault: str
) -> None:
    path, config = tmp_path / "found.json", tmp_path / "specd.toml"
    if text is not None:
        path.write_text(text)
    config.write_text(f'[model.draft]\nskip_file = "{path}"\n')
    assert main(["check", "-c", str(config)]) == 2
    assert f"model.draft: {path} {fault}" in capsys.readouterr().err


def test_layers_outside_of_the_files_own_model_and_two_sources_are_refused(tmp_path: Path) -> None:
    path = structs.replace(FOUND, skip=(1, 4)).write(tmp_path)
    with pytest.raises(ValueError, match=r"names layers \[4\] of a model with 4: search again"):
        DraftSection(skip_file=path)
    with pytest.raises(ValueError, match="skip_layers and skip_file both say which layers"):
        DraftSection(skip_file=FOUND.write(tmp_path), skip_layers=(1,))
