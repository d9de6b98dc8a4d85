"""The directory for what must outlive the daemon."""

import os
from collections.abc import Mapping
from pathlib import Path

from specd.config.store import StoreSection
from specd.errors import UserError


def heads_dir(section: StoreSection) -> Path:
    """Heads that were trained here, each once it has been found good. Raises `UserError`."""
    return store_dir(section) / "heads"


def store_dir(section: StoreSection, env: Mapping[str, str] | None = None) -> Path:
    """`store.directory`, `SPECD_STATE_DIR`, systemd's StateDirectory=, or the user's own. It need not exist yet."""
    environ = os.environ if env is None else env
    if section.directory is not None:
        return section.directory.expanduser()
    if own := environ.get("SPECD_STATE_DIR"):
        return Path(own)
    if of_unit := environ.get("STATE_DIRECTORY"):
        return Path(of_unit.partition(":")[0])
    if of_user := environ.get("XDG_STATE_HOME"):
        return Path(of_user) / "specd"
    try:
        return Path.home() / ".local" / "state" / "specd"
    except RuntimeError:
        raise UserError("there is no home directory to keep alerts in: set store.directory") from None
