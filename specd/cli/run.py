"""`specd run`: the daemon in the foreground."""

import os
import sys
from typing import Final

from specd.cli.configured import load_config
from specd.cli.parser import CACHE, STATE, Arguments, Parser, add_config_arguments, describe
from specd.errors import ConfigError

EX_CONFIG: Final = 78
"""sysexits' code for a bad config; the unit's RestartPreventExitStatus= names it."""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Load the model and serve it until SIGTERM. Logs go to stderr.
Under systemd it speaks Type=notify; SIGHUP reloads the config.""",
        """
        specd run                               the demo model on 127.0.0.1:8000
        specd run -c specd.toml
        specd run --set model.target.path=/models/llama --set policy.k_max=4""",
        files=CACHE | STATE,
        exits={"78": "under systemd: your mistake, which a restart does not mend"},
    )
    add_config_arguments(parser)
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")


def run(args: Arguments) -> int:
    """Serve. A bad config exits 78 under systemd, so that it is not restarted in vain."""
    try:
        loaded = load_config(args)
    except ConfigError as error:
        if "NOTIFY_SOCKET" not in os.environ:
            raise
        print(error, file=sys.stderr)
        return EX_CONFIG
    from specd.daemon import serve  # noqa: PLC0415  a bad config is told before the HTTP stack loads

    return serve(loaded, log_format=args.log_format)
