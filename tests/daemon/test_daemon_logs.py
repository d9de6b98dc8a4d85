import json
import logging
import os
import sys
from pathlib import Path

import pytest

from specd.logs import JournalFormatter, JsonFormatter, TextFormatter, read_by_the_journal

FORGED = "name\nERROR all is lost\x1b[31m\u2028"


def record(message: str, **options: object) -> logging.LogRecord:
    given = {"msg": "got %s", "args": (message,), "name": "specd", "levelno": logging.INFO, **options}
    return logging.makeLogRecord(given)


@pytest.mark.parametrize("formatter", [TextFormatter(), JournalFormatter(), JsonFormatter()])
def test_a_message_cannot_make_lines_of_its_own(formatter):
    """Test that control characters from outside are escaped in either format."""
    line = formatter.format(record(FORGED))
    assert "all is lost" in line
    assert all(character.isprintable() for character in line)


@pytest.mark.parametrize("formatter", [TextFormatter(), JournalFormatter(), JsonFormatter()])
def test_a_traceback_is_kept(formatter):
    """Test that a fault of ours is logged with where it happened."""
    try:
        {}["gone"]
    except KeyError:
        text = formatter.format(record("x", exc_info=sys.exc_info()))
    assert "KeyError: 'gone'" in text


def test_json_lines_have_their_parts():
    """Test that a line is one JSON object with level, logger and message."""
    line = json.loads(JsonFormatter().format(record("it", levelname="WARNING")))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "specd", "got it")


@pytest.mark.parametrize(
    ("level", "priority"), [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2)]
)
def test_the_journal_is_told_priorities_and_no_times(level: str, priority: int) -> None:
    """Test that each level has syslog's number, and that every line of a traceback carries it."""
    number = logging.getLevelName(level)
    try:
        {}["gone"]
    except KeyError:
        failed = record("it", levelname=level, levelno=number, exc_info=sys.exc_info())
    first, *traceback = JournalFormatter().format(failed).split("\n")
    assert first == f"<{priority}>{level} specd: got it"
    assert len(traceback) > 1
    assert all(line.startswith(f"<{priority}>") for line in traceback)


def test_the_journal_is_known_by_its_file(tmp_path: Path) -> None:
    """Test that a variable that was inherited into a redirection does not count."""
    with (tmp_path / "log").open("w") as file:
        found = os.fstat(file.fileno())
        assert read_by_the_journal(file.fileno(), f"{found.st_dev}:{found.st_ino}")
        assert not read_by_the_journal(file.fileno(), f"{found.st_dev}:{found.st_ino + 1}")
        assert not read_by_the_journal(file.fileno(), None)
