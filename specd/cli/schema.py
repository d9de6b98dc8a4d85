"""`specd schema`: every key of the config, for programs or for people."""

import json
import sys

from specd.cli.parser import Arguments, Parser, describe
from specd.config import document
from specd.config.schema import Config


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Print the JSON Schema of the config. "reload" of each key says what it takes to change it:
hot (at once), drain (for new requests, by an update of the target) or restart.""",
        """
        specd schema > specd.schema.json
        specd schema | jq '."$defs".PolicySection.properties.k_max'
        specd schema --markdown > docs/configuration.md""",
    )
    parser.add_argument("--markdown", action="store_true", help="a reference page for people instead")


def run(args: Arguments) -> int:
    """Print it."""
    sys.stdout.write(
        document.page() if args.markdown else json.dumps(Config.model_json_schema(), indent=2) + "\n"
    )
    return 0
