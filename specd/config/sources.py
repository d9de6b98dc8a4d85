"""Where values come from: TOML files, the environment, flags. Each gives a tree of values."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from specd.config.schema import Config
from specd.errors import ConfigError

ENV_PREFIX: Final = "SPECD_"

RESERVED: Final = frozenset({"SPECD_CACHE_DIR", "SPECD_STATE_DIR"})
"""Environment of the process itself, no part of the config."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says."""

    origin: str
    """Named in faults: a file, an environment variable, a flag."""
    values: Mapping[str, Any]
    pins: bool = False
    """The source cannot change while the process lives, so a reload cannot change what it says."""


Reader = Callable[[], Layer]
"""Reads one source. Raises `ConfigError`."""


class _Settings(Config, BaseSettings):
    """The config as pydantic-settings sees it; `strict` makes it read "4" as 4 where a number belongs."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", strict=True)


class _OneVariable(EnvSettingsSource):
    """Reads a single variable, so that each value is known to come from it."""

    def __init__(self, name: str, value: str) -> None:
        self._variable = {name.lower(): value}
        super().__init__(_Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._variable


def read_file(path: Path) -> Layer:
    """A TOML file, which must exist. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            return Layer(str(path), tomllib.load(file))
    except FileNotFoundError:
        raise ConfigError(
            (f"{path}: there is no such file; name one that exists, or none for the defaults",)
        ) from None
    except OSError as error:
        raise ConfigError((f"{path}: cannot be read: {error.strerror}",)) from None
    except UnicodeDecodeError as error:
        raise ConfigError((f"{path}: not valid TOML: byte {error.start} is not UTF-8",)) from None
    except ValueError as error:  # its syntax, or a number of thousands of digits
        raise ConfigError((f"{path}: not valid TOML: {error}",)) from None
    except RecursionError:
        raise ConfigError((f"{path}: arrays or tables in it are nested too deeply to be read",)) from None


def fragments(directory: Path) -> list[Path]:
    """The `*.toml` of a conf.d in name order; none where there is no such directory."""
    return sorted(path for path in directory.glob("*.toml") if path.is_file())


def environment(env: Mapping[str, str]) -> Iterator[Reader]:
    """A reader per `SPECD_…` variable."""
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) and name not in RESERVED:
            yield partial(_variable, origin=name, name=name, value=env[name])


def overrides(flags: Mapping[str, str]) -> Iterator[Reader]:
    """A reader per dotted override, with the same rules for values as in the environment."""
    for key, value in flags.items():
        name = ENV_PREFIX + key.replace(".", "__").upper()
        yield partial(_variable, origin="--set", name=name, value=value)


def _variable(*, origin: str, name: str, value: str) -> Layer:
    location = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
    try:
        values = _OneVariable(name, value)()
    except SettingsError:
        key = ".".join(location)
        raise ConfigError(
            (f'{origin}: {key}: must be JSON here, such as [[2, 8]] or [{{"below": 0.2}}]',)
        ) from None
    if not values:  # what pydantic-settings answers for a section that it does not know
        values = nested(location, value)
    return Layer(origin, values, pins=True)


def nested(location: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A tree with this value alone, at this path of at least one part."""
    tree: Any = value
    for part in reversed(location):
        tree = {part: tree}
    return dict(tree)
