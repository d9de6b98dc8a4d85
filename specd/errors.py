"""What went wrong, for people. The command line prints these without a traceback and exits 2."""

from typing import ClassVar


def clause(error: Exception) -> str:
    """An error of a library as a clause: what it says, or what it is called where it says nothing."""
    return str(error).rstrip(". ") or type(error).__name__


class UserError(Exception):
    """The user's mistake: the message is a sentence that says what is wrong and what to do instead."""

    may_pass: ClassVar[bool] = False
    """Whether a later start may succeed though nobody has changed anything."""


class AddressError(UserError):
    """An address that others have, or that this host does not have yet."""

    may_pass = True


class DaemonError(Exception):
    """The running daemon did not do what was right to ask of it: a fault of ours. The command line exits 1."""


class ConfigError(UserError):
    """The config cannot be used. One line per fault, each with its origin and its key path."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ReloadRefusedError(UserError):
    """A valid config that this process cannot take over, since keys in it need a new process."""

    def __init__(self, keys: tuple[str, ...], instead: str | None = None) -> None:
        old_ones = (
            f"restart specd, put the old value{'s' if len(keys) > 1 else ''} back and reload, or take over all else"
            " with `specd reload --partial`"
        )
        super().__init__(
            f"nothing was changed: {', '.join(keys)} can only change with a restart; {instead or old_ones}"
        )
        self.keys = keys


class ModelError(UserError):
    """A model that is missing, incomplete, or that this version cannot serve."""


class MemoryShortageError(ModelError):
    """A model that could be served where more memory is free."""

    may_pass = True


class MissingModelError(ModelError):
    """A model that is not there: its disk may not be mounted yet, or its hub not be reached."""

    may_pass = True


class FetchError(UserError):
    """A model could not be obtained; what was complete is kept for the next try."""


class UpdateError(UserError):
    """The target was not changed; what served before serves on."""


class RuledOutError(UpdateError):
    """What the canary said of it does not let it serve."""


class UpdateBusyError(UserError):
    """Another change of the target is under way."""
