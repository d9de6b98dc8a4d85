"""The engine process with vLLM in it: vLLM's async engine behind the frames of `engine.api`.

```
daemon   Launch, Submit, Cancel, Configure  ->  Host      ->  AsyncLLM, vLLM's; its core has a process of its own
         Ready, StepReport, Idle            <-            <-  tokens
                                                Listener  <-  reports of SpecdScheduler, in the core's process
```

Started by the daemon as `PYTHON …/engine/vllm --fd N`; `python -m engine.vllm.worker --fd N` does where that is found.
"""

import asyncio
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from engine import exits
from engine.api import Configure, FromEngine, Launch, Loading, Ready, Refused
from engine.process import begin
from engine.share import NICE, may_step_back
from engine.vllm.host import CoreGoneError, Host
from engine.vllm.last_words import LastWords
from engine.vllm.link import SOCKET_VARIABLE, Listener
from engine.vllm.options import environment, unsupported_reason
from engine.vllm.start import CannotStartError, Started, ready_of, start, warm_up
from engine.wire import frame, read_to_engine

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_MEETING_SECONDS: Final = 60.0
_END_SECONDS: Final = 1.0
_MOMENT: Final = 0.2  # seconds, for tasks that have something to read by now
_log = logging.getLogger("specd.engine")


class Worker:
    """One vLLM behind one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._words = LastWords()
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        """In a process that vLLM has forked: it ends with this one, and the daemon can see when this one ends."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._sock.close()

    def run(self) -> int:
        """Serve until told to end. Returns the exit code: 2 for what the user must change."""
        launch = read_to_engine(self._sock)
        if launch is None:
            return exits.FINE
        assert isinstance(launch, Launch), f"the first frame must be Launch, it is {type(launch)}"
        if reason := unsupported_reason(launch.draft.kinds, launch.quantization, launch.vllm_options):
            return self._refuse(launch, CannotStartError(reason))
        try:
            with tempfile.TemporaryDirectory(prefix="specd-vllm-") as folder:
                asyncio.run(self._run(launch, Path(folder) / "scheduler"))
        except CannotStartError as fault:
            return self._refuse(launch, fault)
        except CoreGoneError as gone:
            _log.error("the engine ends: %s", gone)
            return exits.CORE_GONE
        finally:
            self._words.stop()
        return exits.FINE

    async def _run(self, launch: Launch, meeting: Path) -> None:
        """meeting: where the scheduler finds us. Raises CannotStartError, CoreGoneError."""
        for name, value in environment(launch, meeting, SOCKET_VARIABLE, os.environ).items():
            os.environ.setdefault(name, value)
        niceness = _step_back() if launch.share == "behind" else os.getpriority(os.PRIO_PROCESS, 0)
        heard: asyncio.Queue[FromEngine] = asyncio.Queue()
        async with Listener(meeting, heard.put_nowait) as listener:
            listener.configure(Configure(policy=launch.policy, draft=launch.draft))
            self._sock.sendall(frame(Loading("vLLM starts")))
            started = start(launch)
            try:
                await _met(heard)
                await warm_up(started.engine)
                await asyncio.sleep(_MOMENT)
                while not heard.empty():
                    heard.get_nowait()  # of the warm-up
                await self._serve(launch, started, listener, heard, niceness)
            finally:
                started.engine.shutdown(timeout=_END_SECONDS)
        await asyncio.sleep(_MOMENT)

    async def _serve(
        self,
        launch: Launch,
        started: Started,
        listener: Listener,
        heard: asyncio.Queue[FromEngine],
        niceness: int,
    ) -> None:
        gc.freeze()  # torch and vLLM leave a million objects that will never be garbage
        reader, writer = await asyncio.open_unix_connection(sock=self._sock)
        writer.write(frame(ready_of(launch, started)))
        await Host(launch, started, listener, reader, writer, niceness=niceness).run(heard)

    def _refuse(self, launch: Launch, fault: CannotStartError) -> int:
        """With the reason that vLLM's own process has written, if it is one of that process. Returns the exit code."""
        self._words.stop()
        told = str(fault)
        if "Engine core initialization failed" in told:
            told = self._words.reason or told
        lacks_memory = fault.lacks_memory or self._words.lacks_memory
        refused = Refused(f"{launch.model_path} cannot be served by vLLM: {told}", lacks_memory=lacks_memory)
        self._sock.sendall(frame(refused))
        return exits.REFUSED


async def _met(heard: asyncio.Queue[FromEngine]) -> None:
    """Wait for the scheduler to say who it is. Raises CannotStartError."""
    try:
        async with asyncio.timeout(_MEETING_SECONDS):
            first = await heard.get()
    except TimeoutError:
        raise CannotStartError(
            "its scheduler does not answer: is vLLM's process able to import the package `engine`?"
        ) from None
    assert isinstance(first, Ready), f"a scheduler begins with Ready, not with {type(first)}"


def _step_back() -> int:
    """Make this process and what it starts nicer than others, if that can be taken back. Returns the usual niceness."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    if may_step_back():
        os.setpriority(os.PRIO_PGRP, 0, usual + NICE)
    return usual


def main() -> NoReturn:
    """Entry of the process."""
    sock = begin("the engine process of specd with vLLM; started by the daemon")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the daemon asks for it before it kills an engine that hangs
    try:
        code = Worker(sock).run()
    except ConnectionError:
        code = exits.FINE  # the daemon went first
    os._exit(code)  # all is closed, and what vLLM has left complains at length when the interpreter ends


if __name__ == "__main__":
    main()
