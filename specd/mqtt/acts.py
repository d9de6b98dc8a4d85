"""The commands that can be carried out: the same calls as behind the admin listener."""

from collections.abc import Mapping
from typing import Any, Protocol

from specd.errors import UserError
from specd.mqtt.commands import Act, Arguments
from specd.reloading import Reloaded, Trigger


class Asked(Protocol):
    """What commands ask of the daemon."""

    async def reload(self, trigger: Trigger) -> Reloaded:
        """Read the config again. Raises `UserError`."""


def acts_of(daemon: Asked) -> Mapping[str, Act]:
    """By verb. One that is not here is refused by name."""

    async def reload(arguments: Arguments) -> dict[str, Any]:
        _takes(arguments)
        return (await daemon.reload("mqtt")).as_json()

    return {"reload": reload}


def _takes(arguments: Arguments, *keys: str) -> None:
    """Raises `UserError` for a key that the command does not know: a misspelt one must not be passed over."""
    unknown = [key for key in arguments if key not in keys]
    if unknown:
        known = f"it takes {', '.join(keys)}" if keys else "it takes none"
        raise UserError(f"unknown key {unknown[0]!r}: {known}")
