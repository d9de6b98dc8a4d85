import json
import logging
import sys

import pytest

from specd.logs import JsonFormatter, TextFormatter

FORGED = "name\nERROR all is lost\x1b[31m\u2028"


def record(message: str, **options: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "got %s", "args": (message,), "name": "specd", **options})


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_message_cannot_make_lines_of_its_own(formatter):
    """Test that control characters from outside are escaped in either format."""
    line = formatter.format(record(FORGED))
    assert "all is lost" in line
    assert all(character.isprintable() for character in line)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
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
