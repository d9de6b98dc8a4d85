"""What vLLM writes while it starts: its engine is another process, whose reasons for ending are told to nobody else."""

import os
import re
import threading
from collections import deque
from typing import Final

_CHUNK: Final = 64 << 10
_KEPT: Final = 400
_PATIENCE: Final = 1.0  # seconds, for processes that live on and may write
_REASON: Final = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): (\S.*)")
_NOT_A_REASON: Final = "Engine core initialization failed"
_MEMORY: Final = re.compile(
    r"out of memory|can't allocate memory|free memory on device|available memory on node|KV cache memory|MemoryError",
    re.IGNORECASE,
)


class LastWords:
    """Stands between what this process and those that it starts write to stdout and stderr, and who reads that."""

    def __init__(self) -> None:
        """From now on; everything is passed on."""
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._rest = ""
        self._real = os.dup(2)
        reader, writer = os.pipe()
        for standard in (1, 2):
            os.dup2(writer, standard)
        os.close(writer)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), name="last words", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stand no more between them; everything was read that processes have written which have ended."""
        for standard in (1, 2):
            os.dup2(self._real, standard)
        self._thread.join(_PATIENCE)

    @property
    def reason(self) -> str | None:
        """The last error that was written, if one was."""
        return reason_in(list(self._lines))

    @property
    def lacks_memory(self) -> bool:
        """Whether that was for want of memory."""
        return any(_MEMORY.search(line) for line in self._lines if _REASON.search(line))

    def _pass_on(self, reader: int) -> None:
        while chunk := os.read(reader, _CHUNK):
            os.write(self._real, chunk)
            *whole, self._rest = (self._rest + chunk.decode(errors="replace")).split("\n")
            self._lines.extend(whole)


def reason_in(lines: list[str]) -> str | None:
    """The last error that is named in lines of a traceback, as `ValueError: why`."""
    found = [match for line in lines if (match := _REASON.search(line)) and _NOT_A_REASON not in line]
    return f"{found[-1][1]}: {found[-1][2].strip()}" if found else None
