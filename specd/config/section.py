"""What a section of the config is made of: keys, each with its default, its meaning, and what it takes to change it.

hot      takes effect at the next step or request
drain    takes effect for new requests, once the target has been replaced: docs/updates.md
restart  needs a new process
"""

from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specd.local_paths import path_fault


class Reload(StrEnum):
    """What it takes to change a key."""

    HOT = "hot"
    DRAIN = "drain"
    RESTART = "restart"


def _key(kind: Reload, default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"reload": kind.value}, **limits)


def hot(default: Any, description: str, **limits: Any) -> Any:
    """A key that a reload changes at once."""
    return _key(Reload.HOT, default, description, **limits)


def drain(default: Any, description: str, **limits: Any) -> Any:
    """A key that a reload changes for requests from then on, by an update of the target."""
    return _key(Reload.DRAIN, default, description, **limits)


def restart(default: Any, description: str, **limits: Any) -> Any:
    """A key that only a new process can change."""
    return _key(Reload.RESTART, default, description, **limits)


class Section(BaseModel):
    """A part of the config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,  # no time, share or factor here can be either
    )

    @model_validator(mode="after")
    def _paths(self) -> Self:
        for name, value in self:
            if isinstance(value, Path) and (fault := path_fault(str(value))):
                raise ValueError(f"{name}: {fault}")
        return self
