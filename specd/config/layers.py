"""One config out of its layers: files, then environment, then flags; later ones win."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import to_json

from specd.config import alerts, observe
from specd.config.faults import faults, impossible
from specd.config.paths import dotted, leaves
from specd.config.schema import AdminSection, Config
from specd.config.sources import Layer, Reader, environment, fragments, nested, overrides, read_file
from specd.errors import ConfigError

DEFAULT_PATH: Final = Path("/etc/specd/specd.toml")

SET: Final = "set"
"""The origin of what was set in a running daemon."""

KEPT: Final = "kept until a restart"
"""The origin of what the running daemon has otherwise than its files, since only a restart changes it."""

_NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a config is read from, kept so that a reload reads the same places again."""

    path: Path | None
    """The main file; None takes `DEFAULT_PATH` if it exists."""
    conf_d: Path | None
    """Directory of fragments; None takes `conf.d` beside the main file."""
    env: Mapping[str, str]
    flags: Mapping[str, str]
    """Dotted key to value, as written on the command line."""

    @property
    def main(self) -> Path:
        """The main file, existing or not."""
        return self.path or DEFAULT_PATH

    @property
    def fragment_directory(self) -> Path:
        """The conf.d, existing or not."""
        return self.conf_d or self.main.parent / "conf.d"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid config, and what a reload and an operator want to know of its making."""

    config: Config
    sources: Sources
    files: tuple[Path, ...]
    """The files that were read, in order."""
    pinned: Mapping[str, str]
    """Dotted key to the environment variable or flag that sets it, whatever the files say."""
    shadowed: Mapping[str, Any]
    """Pinned keys that a file sets too, with the file's value, which has no effect."""
    digest: str
    """Short hash of the effective config."""
    layers: tuple[Layer, ...]
    """What it was made of, the last of which won."""
    seen: str
    """`fingerprint` of its files, taken before they were read."""

    def again(self) -> "Loaded":
        """Read the same places anew, without what was set on top. Raises `ConfigError`; this one stays valid."""
        return _load(self.sources)

    def with_values(self, values: Mapping[str, Any]) -> "Loaded":
        """The same with other values on top, by dotted key. Reads no file. Raises `ConfigError`, also where a value is
        allowed in the files alone.
        """
        tree = merge(nested(tuple(key.split(".")), value) for key, value in values.items())
        pinned = (key for at, _ in leaves(tree) if (key := dotted(at)) in self.pinned)
        in_vain = tuple(f"{key} is pinned by {self.pinned[key]}: change that and restart" for key in pinned)
        if in_vain:
            raise ConfigError(in_vain)
        made = self._under(Layer(SET, tree))
        refused = (
            *alerts.refused_when_set(made.config.alerts, self.config.alerts),
            *observe.refused_when_set(made.config.observe, self.config.observe),
        )
        if refused:
            raise ConfigError(refused)
        return made

    def keeping(self, values: Mapping[str, Any]) -> "Loaded":
        """The same with these values, a tree, of keys that wait for a restart. Raises `ConfigError` where they do not
        go together with the rest.
        """
        return self._under(Layer(KEPT, values))

    def _under(self, layer: Layer) -> "Loaded":
        return _made(self.sources, (*self.layers, layer), self.files, self.seen)


def load(
    path: Path | None = None,
    *,
    conf_d: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, str] = _NO_VALUES,
) -> Loaded:
    """Read and validate everything. Raises `ConfigError` with all faults of the first stage that has any."""
    environ = dict(os.environ if env is None else env)
    return _load(Sources(path, conf_d, environ, dict(flags)))


def fingerprint(sources: Sources) -> str:
    """Differs once a file has other contents, or there are others. Whatever hinders reading is a content too."""
    digest = hashlib.sha256()
    try:
        for path in _files(sources):
            digest.update(repr((str(path), _contents(path))).encode())
    except ConfigError as error:
        digest.update(str(error).encode())
    return digest.hexdigest()


def _contents(path: Path) -> bytes | str:
    try:
        return path.read_bytes()
    except OSError as error:
        return str(error)


def _load(sources: Sources) -> Loaded:
    seen = fingerprint(sources)
    layers, found = _attempt(_readers(sources))
    if found:
        raise ConfigError(tuple(found))
    return _made(sources, tuple(layers), tuple(_files(sources)), seen)


def _made(sources: Sources, layers: tuple[Layer, ...], files: tuple[Path, ...], seen: str) -> Loaded:
    config = _validate(layers)
    pinned = {dotted(at): layer.origin for layer in layers if layer.pins for at, _ in leaves(layer.values)}
    in_files = {dotted(at): value for layer in layers if not layer.pins for at, value in leaves(layer.values)}
    return Loaded(
        config=config,
        sources=sources,
        files=files,
        pinned=pinned,
        shadowed={key: in_files[key] for key in pinned if key in in_files},
        digest=hashlib.sha256(to_json(config, by_alias=True)).hexdigest()[:12],
        layers=layers,
        seen=seen,
    )


def _files(sources: Sources) -> list[Path]:
    """Raises `ConfigError` where a directory cannot be looked into."""
    named = sources.path is not None
    try:
        main = [sources.main] if named or sources.main.exists() else []
        return main + fragments(sources.fragment_directory)
    except OSError as error:
        raise ConfigError((f"{error.filename or sources.main}: cannot be read: {error.strerror}",)) from None


def _readers(sources: Sources) -> Iterator[Reader]:
    yield from (partial(read_file, path) for path in _files(sources))
    yield from environment(sources.env)
    yield from overrides(sources.flags)


def _attempt(readers: Iterable[Reader]) -> tuple[list[Layer], list[str]]:
    """What could be read, and the faults of the rest."""
    layers: list[Layer] = []
    found: list[str] = []
    for reader in readers:
        try:
            layers.append(reader())
        except ConfigError as error:
            found += error.faults
    return layers, found


def _validate(layers: Sequence[Layer]) -> Config:
    if found := tuple(impossible(layers)):
        raise ConfigError(found)
    merged = merge(layer.values for layer in layers)
    try:
        # Through JSON, where strictness means "no text for a number" and not "no array for a tuple".
        return Config.model_validate_json(to_json(merged), strict=True)
    except ValidationError as error:
        raise ConfigError(tuple(faults(error, layers, merged))) from None


def merge(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables merge key by key; of anything else, arrays too, the later value wins whole."""
    merged: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            old = merged.get(name)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                merged[name] = merge((old, value))
            else:
                merged[name] = value
    return merged


def salvage_admin(path: Path | None, *, flags: Mapping[str, str]) -> AdminSection:
    """Where the daemon listens, out of a config that is faulty; the default where that part is too.

    A reload must reach the daemon just then: it counts the failure and says why.
    """
    sources = Sources(path, None, dict(os.environ), dict(flags))
    layers, _ = _attempt(_readers(sources))
    admin = merge(layer.values for layer in layers).get("admin", {})
    try:
        return AdminSection.model_validate_json(to_json(admin), strict=True)
    except ValidationError:
        return AdminSection()
