"""Telling systemd the truth: sd_notify's datagrams, or nothing where no service manager listens."""

import logging
import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final, Self

from specd.errors import UserError

log = logging.getLogger(__name__)

_MICRO: Final = 1_000_000
_PATIENCE: Final = 1.0
"""Seconds for what is said only once."""
EX_CONFIG: Final = 78
"""sysexits' code for a bad config; the units' RestartPreventExitStatus= names it."""
_ALL: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """What the service manager is told. Without one, every message goes nowhere."""

    def __init__(self, address: str | None = None, *, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds
        """How often at least `watchdog` must be called; None when nobody counts."""
        self.started = False
        """Whether the start has ended: `ready` was called."""
        self._reloads = 0  # that go on; a second one waits for the first

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self:
        """Take the variables out as well: they are for this process, not for the engine."""
        address, usec, pid = (environ.pop(name, None) for name in _ALL)
        for_us = usec is not None and usec.isdigit() and pid in {None, str(os.getpid())}
        return cls(address, watchdog_seconds=int(usec) / _MICRO if for_us and usec else None)

    @property
    def listens(self) -> bool:
        """Whether there is a service manager."""
        return self._address is not None

    def exit_of(self, refusal: UserError) -> int:
        """Of a process that cannot start: whether a service manager is to try again."""
        if not self.listens:
            return 2
        return 1 if refusal.may_pass else EX_CONFIG

    @property
    def awaited(self) -> bool:
        """Whether the service manager counts the seconds until something has ended: the start, or a reload."""
        return not self.started or self._reloads > 0

    def ready(self) -> None:
        """The start has ended."""
        self.started = True
        self._send("READY=1", patience=_PATIENCE)

    @contextmanager
    def reload(self) -> Iterator[None]:
        """While one goes on. During the start nothing is said of it: the end of a reload is told as that of a start."""
        if not self.started:
            yield
            return
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._reloads += 1
        try:
            yield
        finally:
            self._reloads -= 1
            self.ready()

    def stopping(self) -> None:
        """The end begins."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def extend(self, seconds: float) -> None:
        """What it waits for takes at least this much longer: the start, a reload, the end."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICRO)}")

    def watchdog(self) -> None:
        """All is well."""
        self._send("WATCHDOG=1")

    def _send(self, message: str, patience: float = 0.0) -> None:
        """A manager that does not read must not stop the event loop; what it misses is said again soon."""
        if self._address is None:
            return
        # A leading @ stands for the NUL of Linux's abstract sockets.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(patience)
                sock.sendto(message.encode(), address)
        except OSError as error:
            log.warning("systemd cannot be told %s: %s", message.partition("=")[0], error)
