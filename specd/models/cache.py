"""Where models and hashes are kept, and the hashes of large files, remembered by size and time of change."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specd.errors import UserError


class Stamp(msgspec.Struct, frozen=True):
    """A file's hash, and what tells cheaply that the file has not changed since."""

    size: int
    mtime_ns: int
    sha256: str

    def fits(self, path: Path) -> bool:
        """Whether the file still has the size and time of change of when it was hashed."""
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (self.size, self.mtime_ns)


def stamp(path: Path) -> Stamp:
    """Hash the whole file."""
    found = path.stat()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Stamp(found.st_size, found.st_mtime_ns, digest)


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """The daemon's cache: `SPECD_CACHE_DIR`, systemd's CacheDirectory=, or the user's own cache."""
    environ = os.environ if env is None else env
    if own := environ.get("SPECD_CACHE_DIR"):
        return Path(own)
    if of_unit := environ.get("CACHE_DIRECTORY"):
        return Path(of_unit.partition(":")[0])
    if of_user := environ.get("XDG_CACHE_HOME"):
        return Path(of_user) / "specd"
    try:
        return Path.home() / ".cache" / "specd"
    except RuntimeError:
        raise UserError("there is no home directory to keep models in: set SPECD_CACHE_DIR") from None


def write_json(path: Path, value: object) -> None:
    """Write through a rename, so that a reader sees the old text or the new one, whoever else writes at the time."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    draft.replace(path)


@dataclass(frozen=True, slots=True)
class HashCache:
    """SHA-256 of files by absolute path. A cache that cannot be written is only slow."""

    path: Path

    def sha256(self, files: list[Path]) -> list[str]:
        """The files' hashes in order; only what is new or has changed is read."""
        known = self._read()
        found = {str(file.absolute()): self._stamp(file, known) for file in files}
        if any(known.get(name) != new for name, new in found.items()):
            self._write(known | found)
        return [found[str(file.absolute())].sha256 for file in files]

    @staticmethod
    def _stamp(file: Path, known: Mapping[str, Stamp]) -> Stamp:
        old = known.get(str(file.absolute()))
        return old if old is not None and old.fits(file) else stamp(file)

    def _read(self) -> dict[str, Stamp]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Stamp])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, stamps: dict[str, Stamp]) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, stamps)


def hashes() -> HashCache:
    """Of this daemon's models."""
    return HashCache(cache_dir() / "hashes.json")
