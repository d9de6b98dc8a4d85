"""What an engine process writes to stdout and stderr: line by line into the daemon's log, and the end of it is kept."""

import asyncio
import codecs
import contextlib
import logging
import re
from collections import deque
from typing import Final

log = logging.getLogger("specd.engine")

_KEPT: Final = 200
_LONGEST: Final = 500
_CHUNK: Final = 64 << 10
_LAST_WORDS: Final = 0.5
_LEVEL: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:[\w.]+: )?")


class EngineOutput:
    """Reads it to its end."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._rest = ""
        self._reading = asyncio.create_task(self._read())

    @property
    def last_lines(self) -> tuple[str, ...]:
        """At most 200, each cut to 500 characters."""
        return tuple(self._lines)

    async def end(self) -> None:
        """The process has ended: take what is still to be read, but do not wait for children of its own."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _LAST_WORDS)

    async def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            while chunk := await self._stream.read(_CHUNK):
                *whole, self._rest = (self._rest + decoder.decode(chunk)).split("\n")
                for line in whole:
                    self._take(line)
                self._rest = self._rest[:_LONGEST]
        finally:
            if self._rest:
                self._take(self._rest)

    def _take(self, line: str) -> None:
        """As a line of ours, with the level that it names."""
        text = line.rstrip("\r")[:_LONGEST]
        self._lines.append(text)
        level = _LEVEL.match(text)
        if level is None:
            log.info("%s", text)
        else:
            log.log(logging.getLevelNamesMapping()[level[1]], "%s", text[level.end() :])
