"""The one path of every reload, and the watch over the files: whatever comes, the last valid config is in force."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd import reloading
from specd.config.layers import fingerprint, load
from specd.config.schema import Config
from specd.errors import UserError
from specd.reloading import Attempt, Reloader, Trigger, watch
from tests.daemon.conftest import until

UNLOVED = 13
"""A k_max that nobody takes over."""
RUNNING = Config().engine.max_running


@dataclass
class Rig:
    """A reloader of one file, and what became of what it read."""

    file: Path
    taken: list[Config] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        loaded = load(self.file, env={})
        self.reloader = Reloader(loaded, take_over=self._take_over, outcome=self.attempts.append)

    async def _take_over(self, config: Config) -> None:
        await asyncio.sleep(0)
        if config.policy.k_max == UNLOVED:
            raise UserError("nobody takes this over")
        self.taken.append(config)

    def write(self, what: "Written") -> None:
        self.file.write_text(what.toml)

    @property
    def k_max(self) -> int:
        return self.reloader.loaded.config.policy.k_max


@dataclass(frozen=True)
class Written:
    """What a file says; `text` where that is no config."""

    k_max: int = 8
    max_running: int = RUNNING
    text: str | None = None

    @property
    def toml(self) -> str:
        config = f"[policy]\nk_max = {self.k_max}\n[engine]\nmax_running = {self.max_running}\n"
        return config if self.text is None else self.text

    @property
    def valid(self) -> bool:
        return self.text is None and self.k_max <= 16


def rig_of(file: Path, written: Written) -> Rig:
    file.write_text(written.toml)
    return Rig(file)


WRITTEN = st.one_of(
    st.builds(Written, st.integers(0, 17), st.sampled_from([RUNNING, RUNNING, 7])),
    st.sampled_from(["[policy\n", "[policy]\nk_mx = 1\n", "[policy]\nk_max = 'a'\n", "\0", "a = 1\n"]).map(
        lambda text: Written(text=text)
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITTEN),
        st.tuples(st.sampled_from(["reload", "partial"]), st.sampled_from(get_args(Trigger)[1:])),
        st.tuples(st.just("set"), st.integers(0, 17)),
    ),
    max_size=20,
)


class Model:
    """The same in few words."""

    def __init__(self) -> None:
        self.on_disk = Written()
        self.k_max, self.pending, self.error = 8, False, False

    def reload(self, *, partial: bool) -> None:
        lies = self.on_disk
        waits = lies.max_running != RUNNING
        self.error = not lies.valid or lies.k_max == UNLOVED or (waits and not partial)
        if not self.error:
            self.k_max, self.pending = lies.k_max, waits

    def set(self, k_max: int) -> None:
        self.k_max = self.k_max if k_max in {UNLOVED, 17} else k_max


async def play(steps: list[tuple[str, Any]], file: Path) -> None:
    model, rig = Model(), rig_of(file, Written())
    for what, value in steps:
        with contextlib.suppress(UserError):
            if what == "write":
                model.on_disk = value
                rig.write(value)
            elif what == "set":
                model.set(value)
                await rig.reloader.set("admin", {"policy.k_max": value})
            else:
                model.reload(partial=what == "partial")
                await rig.reloader.reload(value, partial=what == "partial")
        config = rig.reloader.loaded.config
        assert (config.policy.k_max, config.engine.max_running) == (model.k_max, RUNNING)
        assert [change.key for change in rig.reloader.pending] == ["engine.max_running"] * model.pending
        assert bool(rig.reloader.last.error) == model.error
        assert not rig.taken or rig.taken[-1] == config


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_comes_the_last_valid_config_is_in_force(tmp_path: Path, steps) -> None:
    """Test that after any sequence of edits, reloads of any kind and sets, the config in force is the one that the last
    good one of them asked for, whole, and that every refusal has a sentence.
    """
    asyncio.run(play(steps, tmp_path / "specd.toml"))


async def test_reloads_at_the_same_time_take_turns(tmp_path: Path) -> None:
    """Test that reloads and sets of all triggers that come together are carried out one by one, none of them lost."""
    file = tmp_path / "specd.toml"
    rig = rig_of(file, Written(k_max=3))
    rig.write(Written(k_max=5))
    reloader = rig.reloader
    asked = [reloader.reload(trigger) for trigger in get_args(Trigger)[1:]]
    done = await asyncio.gather(*asked, reloader.set("mqtt", {"policy.k_max": 6}))
    assert [len(one.changes) for one in done] == [1, 0, 0, 0, 1]
    assert [attempt.trigger for attempt in rig.attempts] == list(get_args(Trigger)[1:])
    assert rig.k_max == 6


class Looks:
    """Counts how often the files were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(reloading, "fingerprint", self._look)

    def _look(self, sources: Any) -> str:
        self.count += 1
        return fingerprint(sources)

    async def more(self) -> None:
        """Enough for whatever would follow to have followed."""
        seen = self.count
        await until(lambda: self.count >= seen + 4)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@asynccontextmanager
async def watched(file: Path, seconds: float = 0.005) -> AsyncIterator[Rig]:
    rig = Rig(file)
    task = asyncio.ensure_future(watch(rig.reloader, rig.reloader.reload, seconds=seconds))
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.wait([task])


def replaced(file: Path, text: str) -> None:
    """As editors save: another file under the name."""
    spare = file.with_name("spare")
    spare.write_text(text)
    spare.replace(file)


def by_fragment(file: Path, text: str) -> None:
    (file.parent / "conf.d").mkdir(exist_ok=True)
    (file.parent / "conf.d" / "50.toml").write_text(text)


@pytest.mark.parametrize("edit", [Path.write_text, replaced, by_fragment])
async def test_a_changed_file_is_taken_over(
    tmp_path: Path, looks: Looks, edit: Callable[..., object]
) -> None:
    """Test that a file that is written over, replaced or added is read once, and the next change of it again."""
    file = tmp_path / "specd.toml"
    file.write_text("")
    async with watched(file) as rig:
        for k_max in (3, 4):
            edit(file, f"[policy]\nk_max = {k_max}\n")
            await until(lambda k_max=k_max: rig.k_max == k_max)
        await looks.more()
        assert [attempt.trigger for attempt in rig.attempts] == ["watch", "watch"]


async def test_a_swapped_link_is_a_change(tmp_path: Path) -> None:
    """Test that files which are all links through one that is swapped, as Kubernetes mounts them, are followed."""
    for name, k_max in (("old", 3), ("new", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "specd.toml").write_text(f"[policy]\nk_max = {k_max}\n")
    data, file = tmp_path / "..data", tmp_path / "specd.toml"
    data.symlink_to("old")
    file.symlink_to("..data/specd.toml")
    async with watched(file) as rig:
        (tmp_path / "..tmp").symlink_to("new")
        (tmp_path / "..tmp").replace(data)
        await until(lambda: rig.k_max == 4)


async def test_a_half_written_file_is_refused_until_it_is_whole(tmp_path: Path, looks: Looks) -> None:
    """Test that it is refused once, by the usual sentence, and that the config stays until the file changes again."""
    file = tmp_path / "specd.toml"
    file.write_text("[policy]\nk_max = 3\n")
    async with watched(file) as rig:
        file.write_text("[policy]\nk_max = 4\n[serv")
        await until(lambda: rig.attempts)
        await looks.more()
        assert [attempt.error is None for attempt in rig.attempts] == [False]
        assert "not valid TOML" in str(rig.attempts[0].error)
        assert rig.k_max == 3
        file.write_text("[policy]\nk_max = 4\n[server]\n")
        await until(lambda: rig.k_max == 4)


async def test_a_file_that_goes_away_is_no_empty_one(tmp_path: Path) -> None:
    """Test that the config stays where its file is removed, and that this is refused by a sentence."""
    file = tmp_path / "specd.toml"
    file.write_text("[policy]\nk_max = 3\n")
    async with watched(file) as rig:
        file.unlink()
        await until(lambda: rig.attempts)
        assert "there is no such file" in str(rig.attempts[0].error)
        assert rig.k_max == 3


async def test_what_another_reload_has_read_is_not_read_again(tmp_path: Path, looks: Looks) -> None:
    """Test that a change that was taken over or refused by hand before the watch saw it is left alone by it."""
    file = tmp_path / "specd.toml"
    file.write_text("")
    async with watched(file, seconds=0.05) as rig:
        for text in ("[policy]\nk_max = 3\n", "[policy\n"):
            file.write_text(text)
            await asyncio.gather(rig.reloader.reload("SIGHUP"), return_exceptions=True)
            await looks.more()
        assert [attempt.trigger for attempt in rig.attempts] == ["SIGHUP", "SIGHUP"]


async def test_a_watch_that_is_off_sees_nothing_until_it_is_on(tmp_path: Path, looks: Looks) -> None:
    """Test that reload.watch = false leaves files alone, and that one set on at run time sees what it missed."""
    file = tmp_path / "specd.toml"
    file.write_text("[reload]\nwatch = false\n")
    async with watched(file) as rig:
        file.write_text("[policy]\nk_max = 3\n")
        await asyncio.sleep(0.05)
        assert (looks.count, rig.attempts) == (0, [])
        await rig.reloader.set("admin", {"reload.watch": True})
        await until(lambda: rig.k_max == 3)
