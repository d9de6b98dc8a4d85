"""Files that the config names, and that may be credentials of systemd's."""

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"


def _located(path: Path) -> Path:
    """With the directory in it that systemd names to the service alone.

    Elsewhere it stays as it is written, so that whoever only asks the daemon something can read the rest of the config.
    """
    first, *rest = path.parts or ("",)
    directory = os.environ.get(_DIRECTORY)
    return Path(directory, *rest) if first == f"${_DIRECTORY}" and directory else path


SecretFile = Annotated[Path, AfterValidator(_located)]
"""A file with a secret, perhaps `$CREDENTIALS_DIRECTORY/NAME`."""
