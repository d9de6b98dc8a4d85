"""Log lines on stderr: text for people and the journal, or one JSON object a line."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]

_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (logging.NOTSET, 7),
)
"""From a level on, and what syslog calls it."""
_QUIET: Final = ("uvicorn", "asyncio", "httpx2", "httpcore2")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def one_line(text: str) -> str:
    """Control characters escaped: a name in a request must not be able to write a log line of its own."""
    return text.translate(_ESCAPES)


class TextFormatter(logging.Formatter):
    """`12:00:00 WARNING specd.supervisor: …`; a traceback follows, indented, so as not to look like the log."""

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(form, "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        """The line without traceback."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  the library's name
        """What was raised may quote somebody."""
        return "\n".join(f"    {one_line(line)}" for line in super().formatException(ei).split("\n"))


class JournalFormatter(TextFormatter):
    """`<4>WARNING specd.supervisor: …`: before each line its priority, as in sd-daemon(3). The journal knows when."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Those of a traceback too."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """JSON escapes what could break the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def read_by_the_journal(stream: int, journal: str | None) -> bool:
    """Whether what is written to this file goes to the journal, of which systemd says in JOURNAL_STREAM which it is."""
    found = os.fstat(stream)
    return journal == f"{found.st_dev}:{found.st_ino}"


def configure_logging(log_format: LogFormat) -> None:
    """For the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _formatter(log_format: LogFormat) -> logging.Formatter:
    if log_format == "json":
        return JsonFormatter()
    journal = read_by_the_journal(sys.stderr.fileno(), os.environ.get("JOURNAL_STREAM"))
    return JournalFormatter() if journal else TextFormatter()
