"""The config for a command that takes `-c` and `--set`."""

import os
import sys
from collections.abc import Callable

from specd.cli.parser import Arguments
from specd.config.layers import Loaded, load
from specd.errors import ConfigError
from specd.notify import EX_CONFIG


def load_config(args: Arguments) -> Loaded:
    """All layers, the command line last. Raises `ConfigError`."""
    return load(args.config, flags=dict(args.flags))


def served(args: Arguments, serve: Callable[[Loaded], int]) -> int:
    """Serve by the config; the exit code. A bad one exits 78 under systemd, so that it is not restarted in vain."""
    try:
        loaded = load_config(args)
    except ConfigError as error:
        if "NOTIFY_SOCKET" not in os.environ:
            raise
        print(error, file=sys.stderr)
        return EX_CONFIG
    return serve(loaded)
