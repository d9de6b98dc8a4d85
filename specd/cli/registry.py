"""The commands: modules with `add_arguments(parser)` and `run(args) -> exit code`, imported when typed."""

from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from specd.cli.parser import Arguments, Parser


class CommandModule(Protocol):
    """What a command's module provides."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the command's arguments and its help text."""

    def run(self, args: Arguments) -> int:
        """Do it. Returns the exit code; raises `UserError` for the user's mistakes."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line of `specd --help`, and where its module is."""

    summary: str
    module: str

    def load(self) -> CommandModule:
        """Import the module: only of the command that was typed, so that the others cost nothing."""
        return cast("CommandModule", import_module(self.module))


COMMANDS: Final = {
    "run": Command("serve the model until SIGTERM", "specd.cli.run"),
    "check": Command("validate config and model without starting", "specd.cli.check"),
    "schema": Command("print the JSON Schema of the config", "specd.cli.schema"),
    "status": Command("one look at a running daemon", "specd.cli.status"),
    "top": Command("a live screen of a running daemon", "specd.cli.top"),
    "reload": Command("make a running daemon read its config again", "specd.cli.reload"),
    "set": Command("set a key of a running daemon until its next reload", "specd.cli.set"),
    "target": Command("show, update or roll back the model that is served", "specd.cli.target"),
    "crashes": Command("what is kept of engines that died", "specd.cli.crashes"),
    "fleet": Command("how all nodes at an MQTT broker stand", "specd.cli.fleet"),
    "route": Command(
        "stand in front of a speculating and a plain instance of another engine", "specd.cli.route"
    ),
    "alerts": Command("what is open, a test of the receivers, silences", "specd.cli.alerts"),
    "drift": Command("what acceptance was and is; accept what it is now", "specd.cli.drift"),
    "observe": Command("engines of others that are looked at", "specd.cli.observe"),
    "keys": Command("make a key for the API, or the line for one that there is", "specd.cli.keys"),
    "models": Command("fetch the demo model, check a model directory", "specd.cli.models"),
    "draft": Command("what there is to draft with, and does it fit the target", "specd.cli.draft"),
    "calibrate": Command("measure what speculation is worth on this host, by load", "specd.calibrate.cli"),
    "bench": Command("measure any OpenAI-compatible server under load", "specd.bench.cli"),
    "demo": Command(
        "a load ramp and a ruinous update, watched: the whole of specd in minutes", "specd.demo.cli"
    ),
    "plan": Command("what speculation is worth, by draft length", "specd.cli.plan"),
    "replay": Command("put recorded requests before drift detectors and alert rules", "specd.cli.replay"),
    "simulate": Command("play a trace of requests against policies, without a model", "specd.simulate.cli"),
    "completion": Command("print a script that completes specd in a shell", "specd.cli.completion"),
    "manual": Command("print the manual page", "specd.cli.manual"),
}
