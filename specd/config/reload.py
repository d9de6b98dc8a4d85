"""What a reload changes, whether it may, and what of a config may be shown. Pure; the daemon acts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from specd.config.layers import SET, Loaded, merge
from specd.config.paths import dotted, leaves, reload_kind
from specd.config.schema import Config
from specd.config.section import Reload
from specd.config.sources import nested
from specd.config.vllm import taken_at_start
from specd.errors import ReloadRefusedError

_HIDDEN: Final = "***"
_SECRET_PATH: Final = ("alerts", "receivers", "url")
"""Whoever knows the path of an incoming webhook, as Slack's, may write there."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs. The values are as in JSON, with secrets hidden, so they may look equal."""

    key: str
    old: Any
    new: Any
    kind: Reload

    def text(self) -> str:
        """For the log: `policy.k_max: 8 -> 4 (hot)`."""
        if self.old == self.new:
            return f"{self.key}: changed in a hidden part ({self.kind})"
        return f"{self.key}: {self.old} -> {self.new} ({self.kind})"


def diff(old: Config, new: Config) -> tuple[Change, ...]:
    """The keys whose values differ, in the order of the schema. An array is one value."""
    return tuple(
        Change(dotted(at), redacted(before, at), redacted(after, at), _kind(at, old))
        for at, before, after in _differing(old, new)
    )


def _kind(at: tuple[str, ...], running: Config) -> Reload:
    """What it takes with the engine that runs."""
    return Reload.RESTART if dotted(at) in taken_at_start(running) else reload_kind(at)


def _differing(old: Config, new: Config) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    after = dict(leaves(_plain(new)))
    return ((at, value, after[at]) for at, value in leaves(_plain(old)) if value != after[at])


def plan_reload(old: Config, new: Config) -> tuple[Change, ...]:
    """The changes to make. Raises `ReloadRefusedError` when one of them needs a new process."""
    changes = diff(old, new)
    refused = tuple(change.key for change in changes if change.kind is Reload.RESTART)
    if refused:
        raise ReloadRefusedError(refused)
    return changes


def without_restarts(old: Loaded, new: Loaded) -> tuple[Loaded, tuple[Change, ...]]:
    """What of a new config a running daemon can take over, and the changes that then wait for a restart. Raises
    `ConfigError` where the old values of these do not go together with the rest.
    """
    kept = [
        nested(at, value)
        for at, value, _ in _differing(old.config, new.config)
        if _kind(at, old.config) is Reload.RESTART
    ]
    if not kept:
        return new, ()
    waiting = (change for change in diff(old.config, new.config) if change.kind is Reload.RESTART)
    return new.keeping(merge(kept)), tuple(waiting)


def ineffective(old: Loaded, new: Loaded) -> tuple[str, ...]:
    """A sentence per key that the files now set differently in vain, since environment or a flag pins it."""
    return tuple(
        f"{key} was changed in a file, but {new.pinned[key]} pins it: change that and restart"
        for key, value in new.shadowed.items()
        if old.shadowed.get(key) != value
    )


def redacted_dump(loaded: Loaded) -> dict[str, Any]:
    """For `GET /admin/v1/config`: the whole config, who pins which key, what was set on top, and the hash."""
    return {
        "config": redacted(_plain(loaded.config)),
        "pinned": dict(loaded.pinned),
        "set": sorted(
            dotted(at) for layer in loaded.layers if layer.origin == SET for at, _ in leaves(layer.values)
        ),
        "files": [str(path) for path in loaded.files],
        "hash": loaded.digest,
    }


def redacted(value: Any, at: tuple[str, ...] = ()) -> Any:
    """A JSON value with the userinfo and query of every URL in it hidden, and the path of a receiver's. at: where the
    value is in the config.
    """
    match value:
        case Mapping():
            return {name: redacted(inner, (*at, name)) for name, inner in value.items()}
        case list() | tuple():
            return [redacted(inner, at) for inner in value]
        case str() if "://" in value:
            return _redacted_url(value, path_too=at == _SECRET_PATH)
        case _:
            return value


def _redacted_url(url: str, *, path_too: bool) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return _HIDDEN
    userinfo, at, host = parts.netloc.rpartition("@")
    return SplitResult(
        scheme=parts.scheme,
        netloc=(_HIDDEN if userinfo else "") + at + host,
        path=f"/{_HIDDEN}" if path_too and parts.path.strip("/") else parts.path,
        query=_HIDDEN if parts.query else "",
        fragment=_HIDDEN if parts.fragment else "",
    ).geturl()


def _plain(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)
