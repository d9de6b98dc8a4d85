"""Argument parsing shared by the commands."""

import argparse
from pathlib import Path

Parser = argparse.ArgumentParser
Arguments = argparse.Namespace


def describe(parser: Parser, text: str, examples: str) -> None:
    """Give a command a help page that teaches: what it does, then lines to copy."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = text.strip()
    parser.epilog = f"examples:\n{indented(examples)}"


def indented(text: str) -> str:
    """Lines with two spaces before them."""
    return "\n".join(f"  {line.strip()}" for line in text.strip().splitlines())


def add_config_arguments(parser: Parser) -> None:
    """`-c` and `--set`, the same for every command that reads the config."""
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="the config, with conf.d/*.toml beside it (default: /etc/specd/specd.toml if it exists)",
    )
    parser.add_argument(
        "--set",
        dest="flags",
        action="append",
        default=[],
        type=_override,
        metavar="KEY=VALUE",
        help="override one key, for example policy.k_max=4; may be repeated",
    )


def _override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as policy.k_max=4")
    return key, value
