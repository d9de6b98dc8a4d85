"""One engine process: started with one end of a socket pair, spoken to in frames, ended for certain."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from engine import exits
from engine.api import FromEngine, ToEngine
from engine.wire import WireError, frame, read_from_engine
from specd.engine_output import EngineOutput

_READ_AHEAD: Final = 1 << 20
_VMSTAT: Final = Path("/proc/vmstat")
_OOM: Final = "; meanwhile the kernel ended a process for want of memory"


class EngineGoneError(Exception):
    """The engine closed its end of the socket ("exit"), or sent what is no message ("protocol")."""

    def __init__(self, reason: Literal["exit", "protocol"], text: str) -> None:
        super().__init__(text)
        self.reason = reason


class EngineProcess:
    """A running engine. Whoever starts one must `end` it, also when it has died by itself."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert process.stdout is not None, "it is a pipe"
        self._process = process
        self._reader = reader
        self._writer = writer
        self._output = EngineOutput(process.stdout)
        self._kills_before = kernel_kills()

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self:
        """Run `command --fd N`.

        It gets a session of its own, so that a Ctrl-C in the daemon's terminal reaches the daemon alone and
        open requests can be drained.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_AHEAD)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            except BaseException:
                writer.close()
                raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Of the engine process."""
        return self._process.pid

    @property
    def last_lines(self) -> tuple[str, ...]:
        """Of what it wrote to stdout and stderr."""
        return self._output.last_lines

    async def testify(self, seconds: float) -> None:
        """Have a process that hangs write down where each of its threads is, if it can, within so many seconds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        before = seen = self.last_lines
        for _ in range(20):
            await asyncio.sleep(seconds / 20)
            if self._process.returncode is not None or before != self.last_lines == seen:
                break
            seen = self.last_lines

    def send(self, message: ToEngine) -> None:
        """Queue a message; to an engine that has gone it is dropped, its end shows in `receive`."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def receive(self) -> FromEngine:
        """The next message. Raises `EngineGoneError`."""
        try:
            return await read_from_engine(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError) as gone:
            raise EngineGoneError("exit", "it closed the connection") from gone
        except (WireError, msgspec.DecodeError) as nonsense:
            raise EngineGoneError("protocol", f"it sent an unreadable message: {nonsense}") from nonsense

    async def end(self, *, grace: float) -> str:
        """Close the socket, which tells the engine to end; kill it if that takes more than `grace` seconds.

        Returns how it ended, for people: "signal 9", "exit code 1".
        """
        self._writer.close()
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        self._end_children()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._output.end()
        code = self._process.returncode or 0
        return ending(code, killed_by_kernel=code == -signal.SIGKILL and kernel_kills() > self._kills_before)

    def _end_children(self) -> None:
        """What it started and left behind, such as the processes that vLLM computes in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # it began a session, and so a group, of its own

    def kill(self) -> None:
        """Signal 9, now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)


def ending(returncode: int, *, killed_by_kernel: bool = False) -> str:
    """How a process ended, from the return code in subprocess' convention."""
    if returncode < 0:
        return f"signal {-returncode}{_OOM if killed_by_kernel else ''}"
    why = exits.WORDS.get(returncode)
    return f"exit code {returncode}" if why is None else f"{why} (exit code {returncode})"


def kernel_kills(vmstat: Path = _VMSTAT) -> int:
    """Processes that the kernel has ended on this host for want of memory; 0 where it does not tell."""
    try:
        words = vmstat.read_text(encoding="ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0
