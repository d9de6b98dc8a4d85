"""Bearer keys out of a file: one a line, as it is or hashed, with what is known of whoever holds it.

    # specd keys new --tenant acme --name laptop
    sha256:9f86d081884c… tenant=acme name=laptop
    a-key-as-it-is

A hash is SHA-256 without salt: keys are drawn with 256 bits, so there is no list of likely ones to try.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from specd.errors import UserError

log = logging.getLogger(__name__)

_HASHED: Final = "sha256:"
_PREFIX: Final = "specd-"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIELDS: Final = ("tenant", "name")
_EVERY: Final = 2.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as the key says."""

    tenant: str | None = None
    """None leaves it to the request's `user`."""
    key: str | None = None
    """The key's name."""


ANYBODY: Final = Caller()


class Key(NamedTuple):
    """One line of a file."""

    digest: bytes
    caller: Caller


class Keys:
    """Those of one file; without a file nobody is asked for one."""

    def __init__(self, file: Path | None, setting: str) -> None:
        """`setting` is the config's name for the file. Raises `UserError` when it cannot be used."""
        self._file = file
        self._setting = setting
        self._keys = self.read()

    @property
    def required(self) -> bool:
        """Whether a key is asked for."""
        return self._file is not None

    @property
    def names(self) -> frozenset[str]:
        """Of those that have one."""
        return frozenset(known.caller.key for known in self._keys if known.caller.key is not None)

    def read(self) -> tuple[Key, ...]:
        """What is in the file now; to be put in force by `replace`. Raises `UserError`, which shows no key."""
        if self._file is None:
            return ()
        return tuple(_parsed(_text(self._file, self._setting), f"{self._setting}: {self._file}"))

    def replace(self, keys: tuple[Key, ...]) -> None:
        """From now on these count."""
        if keys != self._keys:
            log.info("%s: another set of keys is in force, %d in all", self._setting, len(keys))
        self._keys = keys

    def caller(self, authorization: str) -> Caller | None:
        """Who sends this header; None for whoever may not come in. Takes the same time for every wrong key."""
        if self._file is None:
            return ANYBODY
        scheme, _, key = authorization.partition(" ")
        offered = digest(key.strip())
        matches = [known for known in self._keys if hmac.compare_digest(offered, known.digest)]
        return matches[0].caller if matches and scheme.lower() == "bearer" else None

    async def follow(self, every: float = _EVERY) -> None:
        """Put what the file says in force whenever it has changed. A fault changes nothing, and is logged once."""
        told = ""
        while True:
            await asyncio.sleep(every)
            try:
                self.replace(await asyncio.to_thread(self.read))
                told = ""
            except UserError as fault:
                if str(fault) != told:
                    told = str(fault)
                    log.error("the keys in force stay: %s", fault)  # noqa: TRY400


def digest(key: str) -> bytes:
    """What is compared."""
    return hashlib.sha256(key.encode()).digest()


def new_key() -> str:
    """With 256 bits of the system's randomness."""
    return _PREFIX + secrets.token_urlsafe(32)


def line_of(key: str, caller: Caller = ANYBODY) -> str:
    """What to put into the file, without the key itself. Raises `UserError` for a name that no line can hold."""
    fields = [
        f"{name}={value}" for name, value in zip(_FIELDS, (caller.tenant, caller.key), strict=True) if value
    ]
    line = " ".join([_HASHED + digest(key).hex(), *fields])
    (made,) = _parsed(line, "this key")
    if made.caller != caller:
        raise UserError("names are of letters, digits, _ . and -")
    return line


def plain_key(file: Path, setting: str) -> str:
    """The first key of a file that stands there as it is, for whoever is to send it. Raises `UserError`."""
    for _, words in _lines(_text(file, setting)):
        if not words[0].startswith(_HASHED):
            return words[0]
    raise UserError(
        f"{file} ({setting}) holds hashes only, which open nothing: name a file with the token itself by --token-file"
    )


def _text(file: Path, setting: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{setting}: {file} cannot be read ({why}): put one key a line there") from None


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Those that hold something, numbered from 1, as words."""
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _parsed(text: str, where: str) -> Iterator[Key]:
    seen: dict[bytes, int] = {}
    for number, (key, *fields) in _lines(text):
        found = _digest_of(key, f"{where}, line {number}")
        if found in seen:
            raise UserError(f"{where}, lines {seen[found]} and {number} are the same key: remove one")
        seen[found] = number
        yield Key(found, _caller(fields, f"{where}, line {number}"))
    if not seen:
        raise UserError(f"{where} is empty: put one key a line there, or unset the setting")


def _digest_of(key: str, where: str) -> bytes:
    if not key.startswith(_HASHED):
        return digest(key)
    try:
        found = bytes.fromhex(key.removeprefix(_HASHED))
    except ValueError:
        found = b""
    if len(found) != hashlib.sha256().digest_size:
        raise UserError(
            f"{where}: {_HASHED} is followed by 64 hexadecimal digits, as `specd keys new` prints them"
        )
    return found


def _caller(fields: Sequence[str], where: str) -> Caller:
    values: dict[str, str] = {}
    for field in fields:
        name, _, value = field.partition("=")
        if name not in _FIELDS or name in values or not _NAME.fullmatch(value):
            raise UserError(
                f"{where}: a key may be followed by tenant=NAME and name=NAME, each once and of letters, digits, _ . "
                "and - only"
            )
        values[name] = value
    return Caller(values.get("tenant"), values.get("name"))
