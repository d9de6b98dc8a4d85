"""Prompts of clients, kept to train heads on: only where the config asks for it, bounded, and for nobody else's eyes.

DIRECTORY/prompts.jsonl       the last ones
DIRECTORY/prompts.old.jsonl   those before them. Each has at most half of what may be kept; when the first is full, it
                              takes the place of the second
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from specd.config.telemetry import TelemetrySection
from specd.private import private
from specd.telemetry.behind import Append, Behind
from specd.threads import in_thread

log: Final = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
_MOST_WAITING: Final = 1000
_MOST_TOKENS: Final = 1024  # training leaves longer ones out
_MIB: Final = 1 << 20


class PromptFiles:
    """Both files. Blocking."""

    def __init__(self, directory: Path, *, most: int, most_bytes: float) -> None:
        """most, most_bytes: of what is kept."""
        self._new, self._old = directory / "prompts.jsonl", directory / "prompts.old.jsonl"
        self._most, self._most_bytes = max(most // 2, 1), most_bytes / 2
        self._lines = len(_lines(self._new))

    def append(self, lines: Sequence[bytes]) -> None:
        """Keep these, and let the oldest go. Raises `OSError`."""
        self._new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size = self._new.stat().st_size if self._new.exists() else 0
        for line in lines:
            if len(line) + 1 > self._most_bytes:
                continue
            if self._lines >= self._most or size + len(line) + 1 > self._most_bytes:
                self._new.replace(self._old)
                self._lines = size = 0
            with open(self._new, "ab", opener=private) as file:
                size += file.write(line + b"\n")
            self._lines += 1

    def read(self) -> list[bytes]:
        """The oldest first."""
        return [*_lines(self._old), *_lines(self._new)]

    def clear(self) -> None:
        """Keep nothing. Raises `OSError`."""
        for file in (self._old, self._new):
            file.unlink(missing_ok=True)
        self._lines = 0


class PromptRecorder(Behind[bytes]):
    """Writes prompts behind the event loop's back. What cannot be written is said once, and let go."""

    def __init__(self, section: TelemetrySection, directory: Path) -> None:
        super().__init__(interval=_INTERVAL, most=_MOST_WAITING)
        self._directory = directory
        self._files: PromptFiles | None = None
        self.configure(section)

    def configure(self, section: TelemetrySection) -> None:
        """Keep so many from now on."""
        files = PromptFiles(
            self._directory, most=section.prompts_recorded, most_bytes=section.prompts_mib * _MIB
        )
        self._files = files if section.prompts_recorded else None
        if self._files is None:
            self._waiting.clear()
            _cleared(files)

    def asked(self, prompt: dict[str, Any] | None, tokens: int) -> None:
        """Queue a prompt as `specd draft train` reads it; None for one that it cannot."""
        if self._files is None or prompt is None or tokens > _MOST_TOKENS:
            return
        self._put(msgspec.json.encode(prompt))

    async def kept(self) -> list[bytes]:
        """Lines of JSON, the oldest first."""
        await self.flush()
        return [] if self._files is None else await in_thread(self._files.read)

    def _append(self) -> Append[bytes] | None:
        return None if self._files is None else self._files.append

    def _lost(self, lines: Sequence[bytes], error: OSError, *, again: bool) -> None:  # noqa: ARG002  they are gone
        if not again:
            log.error("prompts are not recorded until they can be written: %s", error.strerror)


def _cleared(files: PromptFiles) -> None:
    try:
        files.clear()
    except OSError as error:
        log.error("prompts that were recorded cannot be deleted: %s", error)  # noqa: TRY400


def _lines(file: Path) -> list[bytes]:
    """Whole ones: a daemon that was killed may have left a part of one."""
    if not file.is_file():
        return []
    try:
        return [line[:-1] for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    except OSError:
        return []
