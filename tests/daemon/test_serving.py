"""What the pair that is served is called, and what is remembered of it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specd.config.schema import DraftSection
from specd.config.target import TargetSection
from specd.models.cache import HashCache, write_json
from specd.models.drafts import Drafts, find_drafts
from specd.serving import load_served
from tests.daemon.conftest import write_served_model


def test_hashes_are_kept_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that the cache directory is made as a directory, in which others find room as well."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("SPECD_CACHE_DIR", str(cache))
    load_served(TargetSection(), write_served_model(tmp_path / "model"), Drafts(("ngram",)))
    assert [path.name for path in cache.iterdir()] == ["hashes.json"]


def test_the_tokenizer_is_shared_by_targets_that_have_the_same(tmp_path: Path) -> None:
    """Test that an update with the same tokenizer does not read it again, and with another one does; templates are each
    target's own.
    """
    first, second = (write_served_model(tmp_path / name) for name in ("first", "second"))
    (second / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    serving = load_served(TargetSection(), first, Drafts(("ngram",)))
    alike = load_served(TargetSection(), second, Drafts(("ngram",)), serving)
    assert alike.encoder.tokenizer is serving.encoder.tokenizer
    assert alike.encoder.message("a") != serving.encoder.message("a")
    file = second / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    assert load_served(TargetSection(), second, Drafts(("ngram",)), serving).encoder.tokenizer is not (
        serving.encoder.tokenizer
    )


def test_what_is_written_by_many_at_once_is_always_whole(tmp_path: Path) -> None:
    """Test that threads, whose process has one number, do not write into each other's drafts of a file."""
    file, value = tmp_path / "hashes.json", {f"/models/{number}": "0" * 64 for number in range(200)}
    with ThreadPoolExecutor(8) as pool:
        written = [pool.submit(write_json, file, value) for _ in range(200)]
        for each in written:
            each.result()
            assert json.loads(file.read_bytes()) == value
    assert [path.name for path in tmp_path.iterdir()] == ["hashes.json"]


@pytest.mark.parametrize(
    ("draft", "revision"),
    [
        (DraftSection(), "ngram-2-5"),
        (DraftSection(ngram_max=3), "ngram-2-3"),
        (DraftSection(kind="layer-skip"), "layer-skip-middle"),
        (DraftSection(kind="layer-skip", skip_layers=(3,)), "layer-skip-3"),
        (DraftSection(kind="layer-skip", skip_layers=(3, 0, 1)), "layer-skip-0..1-3"),
        (DraftSection(kind="layer-skip", skip_layers=(0, 3)), "layer-skip-0-3"),
        (DraftSection(kind=("layer-skip", "ngram")), "layer-skip-middle+ngram-2-5"),
        (DraftSection(kind="none"), "none"),
        (DraftSection(kind="none", revision="r7"), "r7"),
    ],
)
def test_draft_revision_follows_what_changes_the_drafts(
    tmp_path: Path, draft: DraftSection, revision: str
) -> None:
    """Test that each draft has a revision of its own, short enough for a label even when most layers are left out."""
    target = write_served_model(tmp_path / "model")
    found = find_drafts(draft, target, HashCache(tmp_path / "hashes.json"))
    assert found.revision(draft) == revision
    assert found.settings(draft).kinds == (draft.kinds or ("ngram",))


def test_each_file_of_a_head_is_part_of_its_revision(tmp_path: Path) -> None:
    target, head = write_served_model(tmp_path / "model"), tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text("{}")
    hashes, revisions = HashCache(tmp_path / "hashes.json"), []
    draft = DraftSection(kind="eagle", head=str(head))
    changes = (
        ("pytorch_model.bin", "a"),
        ("rest.bin", "b"),
        ("rest.bin", "longer"),
        ("config.json", '{"a": 1}'),
    )
    for name, content in changes:
        (head / name).write_text(content)
        revisions.append(find_drafts(draft, target, hashes).revision(draft))
    assert len(set(revisions)) == len(changes)
