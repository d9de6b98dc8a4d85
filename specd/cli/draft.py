"""`specd draft`: drafts that are more than a lookup."""

from specd.cli.draft_files import add_check, add_list
from specd.cli.draft_train import add_train
from specd.cli.draft_use import add_use
from specd.cli.parser import CACHE, Arguments, Parser, describe


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        "Draft models and heads: what there is, and what fits the target. [model.draft] names who drafts.",
        """
        specd draft list                            what the package holds and the config names
        specd draft check ./head                    what is it?
        specd draft check ./small --target demo     can it draft for the demo model?
        specd draft train --kind eagle3 --target demo --prompts builtin --out ./head
        specd draft use ./head                      draft with it from now on""",
        files=CACHE,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add_list(actions)
    add_check(actions)
    add_train(actions)
    add_use(actions)


def run(args: Arguments) -> int:
    """Do what was asked."""
    return args.action(args) or 0
