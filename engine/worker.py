"""The engine process: reads frames from the daemon, steps, writes reports. Ends when the daemon's end closes.

Started by the daemon as `python -m engine.worker --fd N`, where N is one end of a socket pair.
"""

import faulthandler
import gc
import logging
import queue
import signal
import socket
import sys
import threading
from typing import Final

import msgspec
import torch

from engine import exits
from engine.api import (
    Cancel,
    Configure,
    FromEngine,
    Idle,
    Launch,
    Loading,
    Move,
    Ready,
    Refused,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)
from engine.budget import CannotServeError, MemoryShortageError
from engine.core import Engine
from engine.draft.errors import DraftSettingsError
from engine.model.support import UnsupportedModelError
from engine.process import begin
from engine.share import Machine
from engine.start import rest, start
from engine.wire import WireError, frame, read_to_engine

_IDLE_SECONDS: Final = 0.5
_LAUNCH_SECONDS: Final = 60.0
_MOST_FAILURES: Final = 3
_NO_MEMORY: Final = "can't allocate memory"  # what torch says on CPU, in a plain RuntimeError
_log = logging.getLogger("specd.engine")


class Inbox:
    """Messages of the daemon, read by a thread so that a step never waits for them. None: the daemon has gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._queue: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._sock = sock
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def first(self, seconds: float) -> ToEngine | None:
        """The first message alone; None when the daemon has gone or none came in time."""
        try:
            return self._queue.get(timeout=seconds)
        except queue.Empty:
            return None

    def drain(self) -> list[ToEngine | None]:
        """All that has come, without waiting."""
        found = []
        while not self._queue.empty():
            found.append(self._queue.get())
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        return self._queue.empty()

    def wait(self, seconds: float) -> list[ToEngine | None]:
        """The next message and all that came with it; empty when none came in time."""
        try:
            return [self._queue.get(timeout=seconds), *self.drain()]
        except queue.Empty:
            return []

    def _read(self) -> None:
        try:
            while (message := read_to_engine(self._sock)) is not None:
                self._queue.put(message)
        except OSError:
            _log.debug("the daemon's end of the socket is gone")
        except (WireError, msgspec.DecodeError):
            _log.exception("what the daemon sent is not a frame of ours; the engine ends")
        finally:
            self._queue.put(None)  # whatever happened: an engine that no longer listens must not look alive


class Worker:
    """One engine behind one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox = Inbox(sock)
        self._failures = 0  # of self-checks, in a row

    def run(self) -> int:
        """Serve until told to end. Returns the exit code: 2 for what the user must change."""
        launch = self._first()
        if launch is None:
            return exits.FINE
        machine = Machine(launch.threads)
        machine.take(launch.share)
        try:
            engine = start(launch, lambda message: self._send(Loading(message)))
        except (UnsupportedModelError, CannotServeError, DraftSettingsError, OSError) as fault:
            self._send(Refused(str(fault), lacks_memory=isinstance(fault, MemoryShortageError)))
            return exits.REFUSED
        except (
            RuntimeError,
            ValueError,
            LookupError,
        ) as fault:  # how torch and transformers refuse a directory
            _log.exception("the model could not be loaded")
            self._send(Refused(f"{launch.model_path} could not be loaded: {type(fault).__name__}: {fault}"))
            return exits.REFUSED
        self._send(_ready(engine, launch))
        try:
            self._serve(engine, machine)
        except (MemoryError, RuntimeError) as fault:
            code = _exit_code(fault)
            if code is None:
                raise
            _log.exception("the engine ends: %s", exits.WORDS[code])
            return code
        return exits.FINE

    def _serve(self, engine: Engine, machine: Machine) -> None:
        """Until told to end."""
        while self._take(engine, machine, self._next(engine)):
            if engine.has_work:
                self._send(self._step(engine))

    def _step(self, engine: Engine) -> StepReport:
        """A self-check that fails ends what ran, not the engine; one that fails again and again does."""
        try:
            report = engine.step()
        except AssertionError as fault:
            self._failures += 1
            if self._failures == _MOST_FAILURES:
                raise
            _log.exception(
                "a self-check has failed: what ran is ended, and the engine goes on with an empty pool"
            )
            return engine.abandon(
                f"a self-check of the engine failed ({_first_line(fault)}); send the request again"
            )
        self._failures = 0
        return report

    def _first(self) -> Launch | None:
        launch = self._inbox.first(_LAUNCH_SECONDS)
        assert launch is None or isinstance(launch, Launch), (
            f"the first frame must be Launch, it is {type(launch)}"
        )
        return launch

    def _next(self, engine: Engine) -> list[ToEngine | None]:
        if engine.has_work:
            return self._inbox.drain()
        messages = self._inbox.wait(_IDLE_SECONDS)
        if not messages:
            self._rest(engine)
        return messages

    def _rest(self, engine: Engine) -> None:
        idle = Idle(engine.steps, engine.kv_usage(), engine.policy.costs)
        try:
            rest(engine, _log.info, lambda: self._is_idle(idle))
        except AssertionError:
            _log.exception("a self-check has failed while nothing ran: the engine goes on with an empty pool")
            self._send(engine.abandon("nothing ran"))
        self._send(idle)

    def _is_idle(self, idle: Idle) -> bool:
        """Whether there still is nothing to do; while that is measured by, the daemon must not take us for dead."""
        self._send(idle)
        return self._inbox.is_empty

    def _take(self, engine: Engine, machine: Machine, messages: list[ToEngine | None]) -> bool:
        """Apply messages. False when it is time to end."""
        for message in messages:
            match message:
                case Submit(request=request):
                    engine.submit(request)
                case Cancel(id=request_id):
                    engine.cancel(request_id)
                case Configure(policy=policy, draft=draft, verification=verification):
                    try:
                        engine.configure(policy, draft, verification)
                    except DraftSettingsError as fault:
                        _log.error("settings not taken over, the old ones stay: %s", fault)
                case Move(share=share):
                    machine.take(share)
                case Shutdown() | None:
                    return False
                case Launch():
                    _log.error("a second Launch was ignored")
        return True

    def _send(self, message: FromEngine) -> None:
        self._sock.sendall(frame(message))


def _exit_code(fault: Exception) -> int | None:
    """Of an engine that this has happened to in a step; None where it is none of what is known."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY in str(fault):
        return exits.NO_MEMORY
    return exits.DEVICE_FAILED if isinstance(fault, torch.AcceleratorError) else None


def _first_line(fault: Exception) -> str:
    return str(fault).partition("\n")[0] or "no reason given"


def _ready(engine: Engine, launch: Launch) -> Ready:
    return Ready(
        model_path=launch.model_path,
        model_type=engine.model_type,
        dtype=launch.dtype,
        quantization=launch.quantization,
        max_context=engine.max_context,
        encodes=engine.encodes,
        kv_blocks=engine.pool.total,
        block_size=engine.pool.block_size,
        proposers=tuple(each.name for each in engine.proposers),
        memory=engine.memory,
        room=engine.room,
    )


def main() -> int:
    """Entry of the process."""
    sock = begin("the engine process of specd; started by the daemon")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the daemon asks for it before it kills an engine that hangs
    gc.freeze()  # torch and transformers leave a million objects that will never be garbage
    try:
        return Worker(sock).run()
    except ConnectionError:
        return 0  # the daemon went first


if __name__ == "__main__":
    sys.exit(main())
