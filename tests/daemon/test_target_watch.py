"""When a directory holds another model."""

import asyncio
import itertools
import shutil
from pathlib import Path

from specd.config.target import TargetSection
from specd.errors import UpdateBusyError, UserError
from specd.target.watch import Settling, signature, watch
from specd.tasks import ended
from tests.daemon.conftest import until
from tests.daemon.model_directory import safetensors, write_model


def test_a_model_is_taken_once_it_has_been_left_alone():
    """Test that each look that differs from the last one waits, and that what settled is taken once."""
    settling = Settling(("a",))
    assert [settling.has_settled((one,)) for one in "aabcccc"] == [False] * 4 + [True, False, False]


def test_what_nobody_had_time_for_settles_again():
    """Test that a model that was put back is taken at the next look, and that one that was refused before is not."""
    settling = Settling(("a",))
    looks = [settling.has_settled((one,)) for one in "bb"]
    assert looks == [False, True]
    assert [settling.has_settled((one,)) for one in "bcc"] == [False, False, True]
    settling.put_back()
    assert settling.has_settled(("c",))
    assert not settling.has_settled(("c",))


async def test_a_swap_during_another_change_is_not_lost(tmp_path: Path):
    """Test that the watch asks again after an update was under way, and not after a refusal."""
    model = write_model(tmp_path / "model")
    section = TargetSection.model_validate({"path": str(model), "update": {"watch_seconds": 0.01}})
    answers = [UpdateBusyError("busy"), UpdateBusyError("busy"), UserError("no")]
    asked: list[TargetSection] = []
    looks = itertools.count()
    begun = asyncio.Event()

    def target() -> TargetSection:
        if next(looks) > 2:  # it has seen what lies there at first
            begun.set()
        return section

    async def update(target: TargetSection) -> None:
        asked.append(target)
        if answers:
            raise answers.pop(0)

    watching = asyncio.create_task(watch(target, update))
    try:
        await begun.wait()
        (model / "model.safetensors").write_bytes(safetensors("a", "b", "c"))
        await until(lambda: len(asked) == 3)
        (model / "model.safetensors").write_bytes(safetensors("a", "b", "c", "d"))
        await until(lambda: len(asked) == 4)
    finally:
        await ended(watching)


def test_what_was_served_at_first_is_no_update():
    """Test that a model that goes and comes back as it was is not taken again."""
    settling = Settling(("a",))
    looks = [("b",), ("a",), ("a",), None, None, ("a",), ("a",)]
    assert not any(settling.has_settled(look) for look in looks)


def test_another_link_is_another_model(tmp_path: Path):
    """Test that swapping a link, replacing a file and writing over one are each seen, and looking changes nothing."""
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    link = tmp_path / "current"
    link.symlink_to(one)
    seen = [signature(str(link))]
    assert signature(str(link)) == seen[0]
    spare = tmp_path / "spare"
    spare.symlink_to(two)
    spare.replace(link)
    seen.append(signature(str(link)))
    (tmp_path / "new").write_bytes(safetensors("a", "b"))
    (tmp_path / "new").replace(two / "model.safetensors")
    seen.append(signature(str(link)))
    (two / "model.safetensors").write_bytes(safetensors("a", "b", "c"))
    seen.append(signature(str(link)))
    assert len(set(seen)) == len(seen)


def test_what_is_no_directory_has_no_signature(tmp_path: Path):
    """Test that a vanished directory, a loop of links and a hub's name are nothing that could settle."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    gone = write_model(tmp_path / "gone")
    shutil.rmtree(gone)
    assert [signature(name) for name in (str(gone), str(tmp_path / "loop"), "org/name")] == [None] * 3
