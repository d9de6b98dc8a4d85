"""`specd schema`: the JSON Schema of the config."""

import json

from specd.cli.parser import Arguments, Parser, describe
from specd.config.schema import Config


def add_arguments(parser: Parser) -> None:
    """Declare the arguments: there are none."""
    describe(
        parser,
        """
Print the JSON Schema of the config. "reload" of each key says what it takes to change it:
hot (at once), drain (once the requests in flight have ended) or restart.""",
        """
        specd schema > specd.schema.json
        specd schema | jq '."$defs".PolicySection.properties.k_max'""",
    )


def run(_args: Arguments) -> int:
    """Print it."""
    print(json.dumps(Config.model_json_schema(), indent=2))
    return 0
