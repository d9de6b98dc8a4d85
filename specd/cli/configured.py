"""The config for a command that takes `-c` and `--set`."""

from specd.cli.parser import Arguments
from specd.config.layers import Loaded, load


def load_config(args: Arguments) -> Loaded:
    """All layers, the command line last. Raises `ConfigError`."""
    return load(args.config, flags=dict(args.flags))
