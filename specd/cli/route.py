"""`specd route`: a router in front of two instances of an engine that cannot be steered."""

from specd.cli.configured import served
from specd.cli.parser import Arguments, Parser, add_config_arguments, describe
from specd.config.layers import Loaded


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
A router in front of two instances of an engine whose drafts cannot be steered, such as llama.cpp's: one speculates,
one does not. Each request goes where the load policy says, and to the other one where that is down. It reads [router],
[policy.load], [server] and [admin] of the config, needs no model, and runs until SIGTERM.""",
        """
        specd route -c router.toml
        specd route --set router.speculating=http://127.0.0.1:8080 --set router.plain=http://127.0.0.1:8081
        specd route -c router.toml --set policy.load.off_above=4""",
        exits={"78": "under systemd: your mistake, which a restart does not mend"},
    )
    add_config_arguments(parser)
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")


def run(args: Arguments) -> int:
    """Route."""

    def serve(loaded: Loaded) -> int:
        from specd.router import router  # noqa: PLC0415  a bad config is told before the HTTP stack loads

        return router.serve(loaded, log_format=args.log_format)

    return served(args, serve)
