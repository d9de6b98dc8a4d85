"""`specd completion`: what makes a shell complete specd's commands, options and keys."""

import sys

from specd.cli.parser import Arguments, Parser, describe
from specd.cli.shells import SHELLS
from specd.cli.tree import grown, places


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Print a script that makes a shell complete commands, options, files, and keys of the config after --set.
It is of this version: print it again after an upgrade.""",
        """
        specd completion bash > /etc/bash_completion.d/specd
        specd completion zsh > /usr/local/share/zsh/site-functions/_specd
        specd completion fish > ~/.config/fish/completions/specd.fish
        source <(specd completion bash)         for this shell alone""",
        files={"/etc/bash_completion.d": "where bash looks, with Debian's package bash-completion"},
    )
    parser.add_argument("shell", choices=SHELLS, help="which")


def run(args: Arguments) -> int:
    """Print it."""
    sys.stdout.write(SHELLS[args.shell](next(places(grown()))))
    return 0
