"""`specd run`: the daemon in the foreground."""

from specd.cli.configured import served
from specd.cli.parser import CACHE, STATE, Arguments, Parser, add_config_arguments, describe
from specd.config.layers import Loaded


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
    """Serve."""

    def serve(loaded: Loaded) -> int:
        from specd import daemon  # noqa: PLC0415  a bad config is told before the HTTP stack loads

        return daemon.serve(loaded, log_format=args.log_format)

    return served(args, serve)
