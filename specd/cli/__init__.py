"""The `specd` command."""

from specd.cli.main import main

__all__ = ["main"]
