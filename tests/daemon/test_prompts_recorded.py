"""Prompts are recorded only where that is asked for, within bounds, for their owner's eyes alone."""

import json
from pathlib import Path

import pytest

from specd.config.telemetry import TelemetrySection
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.recorded import as_prompt
from specd.telemetry.prompts import PromptFiles, PromptRecorder


def files(directory: Path, **bounds: float) -> PromptFiles:
    return PromptFiles(directory, **{"most": 10, "most_bytes": 1e6, **bounds})


def test_the_last_ones_are_kept(tmp_path):
    """Test that there are never more than may be kept, nor fewer than half of it, and that order and mode are kept."""
    store = files(tmp_path / "state")
    for number in range(100):
        store.append([b"%d" % number])
        kept = store.read()
        assert kept == [b"%d" % each for each in range(number + 1 - len(kept), number + 1)]
        assert min(number + 1, 5) <= len(kept) <= 10
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "state").iterdir()} == {0o600}
    again = files(tmp_path / "state")
    again.append([b"x"])
    assert len(again.read()) <= 10


def test_bytes_are_bounded_too(tmp_path):
    """Test that a line that is larger than half of what may be kept is not kept at all."""
    store = files(tmp_path, most=1000, most_bytes=100)
    store.append([b"a" * 20] * 50 + [b"b" * 60])
    assert 2 <= len(store.read()) <= 4
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 100
    assert {line[:1] for line in store.read()} == {b"a"}


async def test_nothing_is_kept_unless_it_is_asked_for(tmp_path):
    """Test that by default no file is made, and that turning it off deletes what was kept."""
    section = TelemetrySection()
    recorder = PromptRecorder(section, tmp_path)
    recorder.asked({"prompt": "secret"}, 3)
    await recorder.flush()
    assert list(tmp_path.iterdir()) == []
    recorder.configure(section.model_copy(update={"prompts_recorded": 10}))
    recorder.asked({"prompt": "secret"}, 3)
    recorder.asked({"prompt": "too long for training"}, 1025)
    recorder.asked(None, 1)
    assert await recorder.kept() == [b'{"prompt":"secret"}']
    recorder.configure(section)
    assert list(tmp_path.iterdir()) == []
    assert await recorder.kept() == []
    await recorder.aclose()


async def test_a_full_disk_is_told_once_and_without_the_text(tmp_path, caplog):
    """Test that serving goes on, and that recording does when there is room again."""
    (tmp_path / "prompts.jsonl").symlink_to("/dev/full")
    recorder = PromptRecorder(TelemetrySection(prompts_recorded=10), tmp_path)
    for _ in range(3):
        recorder.asked({"prompt": "secret"}, 3)
        await recorder.flush()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "secret" not in caplog.text
    (tmp_path / "prompts.jsonl").unlink()
    recorder.asked({"prompt": "later"}, 3)
    assert await recorder.kept() == [b'{"prompt":"later"}']


USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (CompletionBody(prompt="def f", temperature=0.2), {"prompt": "def f", "temperature": 0.2}),
        (CompletionBody(prompt=[1, 2]), None),
        (ChatBody(messages=[USER], temperature=0), {"messages": [USER], "temperature": 0.0}),
        (ChatBody(messages=[USER], tools=[TOOL]), None),
        (ChatBody(messages=[USER | {"name": "ann"}]), None),
    ],
)
def test_a_request_is_recorded_as_training_reads_it(body, prompt):
    """Test that what training cannot read is left out."""
    assert json.loads(json.dumps(as_prompt(body))) == prompt
