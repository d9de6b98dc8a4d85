"""The commands that can be carried out: the same calls as behind the admin listener."""

import time
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from specd.alerts.silences import Silence
from specd.errors import UserError
from specd.http.alerts import SilenceBody, silence_json
from specd.mqtt.commands import Act, Arguments
from specd.reloading import Reloaded, Trigger
from specd.target.outcome import Outcome


class Asked(Protocol):
    """What commands ask of the daemon."""

    async def reload(self, trigger: Trigger, *, partial: bool) -> Reloaded:
        """Read the config again; partial: keys that need a restart wait for it. Raises `UserError`."""

    async def set(self, values: Mapping[str, Any], trigger: Trigger) -> Reloaded:
        """Set keys until the next reload, by dotted name. Raises `UserError`."""

    async def update_target(self, path: str, revision: str | None) -> Outcome:
        """Serve another target. Raises `UserError`."""

    async def roll_back(self) -> Outcome:
        """Serve the previous target. Raises `UserError`."""

    async def silence(self, silence: Silence) -> None:
        """Tell nobody of some alerts for a time. Raises `UserError`."""


class _Reload(msgspec.Struct, forbid_unknown_fields=True):
    partial: bool = False


class _Target(msgspec.Struct, forbid_unknown_fields=True):
    path: str = ""
    revision: str | None = None
    rollback: bool = False


def acts_of(daemon: Asked) -> Mapping[str, Act]:
    """By verb. One that is not here is refused by name."""

    async def reload(arguments: Arguments) -> dict[str, Any]:
        wanted = _read(arguments, _Reload)
        return (await daemon.reload("mqtt", partial=wanted.partial)).as_json()

    async def set_(arguments: Arguments) -> dict[str, Any]:
        return (await daemon.set(arguments, "mqtt")).as_json()

    async def target(arguments: Arguments) -> dict[str, Any]:
        wanted = _read(arguments, _Target)
        if bool(wanted.path) == wanted.rollback:
            raise UserError(
                'say which target: {"path": "/models/next"}, or {"rollback": true} for the previous one'
            )
        change = daemon.roll_back() if wanted.rollback else daemon.update_target(wanted.path, wanted.revision)
        return {"result": "ok", **(await change).document()}

    async def silence(arguments: Arguments) -> dict[str, Any]:
        now = time.time()
        made = _read(arguments, SilenceBody).made(now)
        await daemon.silence(made)
        return silence_json(made, now)

    return {"reload": reload, "set": set_, "target": target, "silence": silence}


_Kind = TypeVar("_Kind")


def _read(arguments: Arguments, kind: type[_Kind]) -> _Kind:
    """Raises `UserError`; a misspelt key is not passed over."""
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"the payload cannot be used: {error}") from None
