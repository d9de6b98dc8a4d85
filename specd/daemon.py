"""The daemon's life: startup, main loop, shutdown. The only place with signal handlers.

Signals set events, the loop acts on them:
  SIGHUP            reload
  SIGTERM, SIGINT   drain: no new requests, open ones go on for `server.drain_seconds`, then the end
  a second one      the end now
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Final

import uvloop

from specd import memory
from specd.bringing_up import bring_up
from specd.config.layers import Loaded
from specd.errors import UserError
from specd.flights import Refusal
from specd.heartbeat import EXTENSION, heartbeat
from specd.http.guard import exposed
from specd.http.listen import Listener
from specd.launching import engine_command as command_of
from specd.life import Life
from specd.logs import LogFormat, configure_logging
from specd.notify import Notifier
from specd.parts import Parts, Programs
from specd.supervisor import EngineFailedError
from specd.target.idle import idle
from specd.training import PROGRAM

log = logging.getLogger(__name__)

_LAST_WORDS: Final = 2.0
_CLOSING: Final = Refusal("the server is shutting down; send the request again later", "shutting_down")


def serve(
    loaded: Loaded,
    *,
    log_format: LogFormat = "text",
    engine_command: Sequence[str] = (),
    train_command: Sequence[str] = (),
) -> int:
    """Run the daemon until it is told to end; the exit code. engine_command, train_command: in the place of the engine
    that is configured, as `engine_command --fd N`, and of what trains heads.
    """
    memory.begin()
    configure_logging(log_format)
    notifier = Notifier.from_environment()
    say = log.info if log_format == "json" else _print
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            engine = engine_command or command_of(loaded.config.engine)
            programs = Programs(engine, train_command or idle(PROGRAM))
            runner.run(_run(loaded, programs, notifier, say))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return notifier.exit_of(error)
    except EngineFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _run(loaded: Loaded, programs: Programs, notifier: Notifier, say: Callable[[str], None]) -> None:
    config = loaded.config
    if why_not := list(exposed(config)):
        raise UserError("\n".join(why_not))
    with (
        contextlib.closing(Listener("server.listen", config.server.listen)) as inference,
        contextlib.closing(Listener("admin.listen", config.admin.listen)) as admin,
    ):
        life = Life()
        daemon = Daemon(Parts(loaded, programs, life, notifier), life, notifier)
        daemon.startup(inference, admin, say)
        await life.over()
        await daemon.shutdown()


class Daemon:
    """The order in which parts come and go."""

    def __init__(self, parts: Parts, life: Life, notifier: Notifier) -> None:
        self._parts = parts
        self._life = life
        self._notifier = notifier

    def startup(self, inference: Listener, admin: Listener, say: Callable[[str], None]) -> None:
        """Open the doors, then begin to load the model: whoever asks meanwhile gets an answer."""
        parts, spawn = self._parts, self._life.spawn
        self._life.heed_signals(parts.reloads.by_signal)
        parts.doors.open(inference, parts.inference())
        parts.doors.open(admin, parts.admin())
        say(f"inference  {inference.url}\nadmin      {admin.url}")
        spawn(parts.dashboard.run())
        parts.bridge.start()
        parts.watchers.start(parts.bridge, self._life)
        parts.doors.follow_keys()
        spawn(heartbeat(self._notifier, parts.lines, parts.status))
        self._coming_up = spawn(bring_up(parts, self._life, self._notifier, inference.url, say))

    async def shutdown(self) -> None:
        """Drain and close. Raises what made the daemon stop, if something did."""
        parts, life = self._parts, self._life
        self._notifier.stopping()
        await parts.healer.aclose()
        await parts.updates.aclose()
        parts.lines.close(_CLOSING)
        if not life.failed and parts.lines.current.supervisor.info is not None:
            await self._drain()
        self._coming_up.cancel()  # what ends now would look like a failed start to it
        for line in parts.lines.all:
            line.close(_CLOSING)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(parts.lines.empty(), _LAST_WORDS)
        parts.dashboard.close()
        await parts.doors.aclose()
        await life.aclose()
        await asyncio.gather(*(line.end(_CLOSING) for line in parts.lines.all))
        grace = 0 if life.hurry.is_set() else _LAST_WORDS
        await parts.watchers.aclose(grace)
        await parts.bridge.aclose(grace)
        life.raise_fault()

    async def _drain(self) -> None:
        lines, seconds = self._parts.lines, self._parts.reloader.config.server.drain_seconds
        self._notifier.extend(seconds + EXTENSION)
        await self._life.drained(len(lines), lines.empty(), seconds)
