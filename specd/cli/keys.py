"""`specd keys`: keys for the API and the admin listener, and their lines in a file of keys."""

import sys

from specd.cli.parser import Arguments, Parser, describe
from specd.errors import UserError
from specd.http.keys import Caller, line_of, new_key


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
Make keys. A file of keys (server.api_keys_file, admin.token_file) holds one a line, best as a hash: whoever reads
it cannot come in by it. The running daemon follows the file.""",
        """
        specd keys new --tenant acme --name laptop >> keys       the key is shown once, on stderr
        specd keys hash --tenant acme < key >> keys              the line for a key that there is""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _action(actions.add_parser("new", help="draw a key: itself to stderr, its line to stdout"), _new)
    _action(actions.add_parser("hash", help="read a key from stdin, and print its line"), _hash)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _action(parser: Parser, action: object) -> None:
    parser.add_argument("--tenant", help="whose requests these are, whatever they say themselves")
    parser.add_argument("--name", help="of the key, for [[server.limits]]")
    parser.set_defaults(action=action)


def _new(args: Arguments) -> int:
    key = new_key()
    line = line_of(key, _caller(args))
    print(key, file=sys.stderr)
    print(line)
    return 0


def _hash(args: Arguments) -> int:
    key = sys.stdin.readline().strip()
    if not key:
        raise UserError("there is no key on stdin: write it there, in one line")
    print(line_of(key, _caller(args)))
    return 0


def _caller(args: Arguments) -> Caller:
    return Caller(args.tenant, args.name)
