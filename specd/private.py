"""Files for the daemon's own user alone."""

import os


def private(path: str, flags: int) -> int:
    """For `open(..., opener=private)`: a file that is made is read and written by its owner only."""
    return os.open(path, flags, 0o600)
