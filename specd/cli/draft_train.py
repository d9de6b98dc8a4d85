"""`specd draft train`: a head or a skip set for a target, made on this machine."""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specd.cli.parser import CACHE, INTERRUPTED, Arguments, describe
from specd.errors import UserError
from specd.models.cache import hashes
from specd.models.identity import fingerprint
from specd.models.resolve import public_name, resolve_target
from specd.training import PROGRAM, Training

BUILTIN: Final = "builtin"
_KINDS: Final = ("eagle3", "medusa", "layer-skip")
_INTERRUPTED: Final = 130


def add_train(actions: Any) -> None:
    """Declare `train`. actions: the subparsers of `specd draft`."""
    parser = actions.add_parser("train", help="make a head or a skip set for a target, on this machine")
    describe(
        parser,
        """
Makes a draft for a target out of what the target itself says. It answers the prompts, its hidden states and laws are
read, and the draft learns to say what the target would say next; in the end it is tried on prompts that were held out.
Ctrl-C, a kill, a reboot: the same command goes on where it was.

  eagle3      one decoder layer that goes on from the target's hidden states: drafts best
  medusa      a small block for each position: drafts worse, and is made in minutes
  layer-skip  the target itself with some layers left out: searched and not trained

PROMPTS is a file with a JSON object in each line, {"messages": [{"role": "user", "content": "..."}]} or
{"prompt": "..."}, best of the traffic that is to be served, a thousand or more; or "builtin", which makes some of the
standard library, of the system's documentation and of what the target asks when it is let.
An hour or so on two cores for the demo model; larger targets take as much longer as they are larger.""",
        """
        specd draft train --kind eagle3 --target demo --prompts builtin --out ./head
        specd draft train --kind eagle3 --target ./model --prompts chats.jsonl --out ./head --minutes 240
        specd draft train --kind layer-skip --target demo --prompts builtin --out ./skip --tokens 20000""",
        files={"OUT/work": "what was done so far, from where the same command goes on"} | CACHE,
        exits=INTERRUPTED,
    )
    parser.add_argument("--kind", choices=_KINDS, required=True, help="see above")
    parser.add_argument("--target", required=True, metavar="TARGET", help="named as in model.target.path")
    parser.add_argument("--prompts", required=True, metavar="FILE", help=f'JSON lines, or "{BUILTIN}"')
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="the result; OUT/work can be deleted then"
    )
    parser.add_argument("--tokens", type=int, default=500_000, metavar="N", help="of answers, default 500000")
    parser.add_argument(
        "--minutes", type=float, default=45.0, metavar="M", help="for the training itself, default 45"
    )
    parser.add_argument(
        "--disk", type=float, default=8.0, metavar="GB", help="for the work, at most; default 8"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of prompts, answers and training")
    parser.add_argument(
        "--workers", type=int, default=2, metavar="W", help="processes of one thread each, default 2"
    )
    parser.set_defaults(action=_train)


def command(args: Arguments, target: Path, revision: str) -> list[str]:
    """What is started. revision: the target's fingerprint."""
    given = {name: getattr(args, name) for name in
             ("kind", "prompts", "out", "tokens", "minutes", "disk", "seed", "workers")}  # fmt: skip
    training = Training(target=target, name=public_name(args.target), fingerprint=revision, **given)
    return [*PROGRAM, *training.arguments()]


def _train(args: Arguments) -> int:
    _require(args)
    target = resolve_target(args.target)
    return _run(command(args, target, fingerprint(target, hashes())))


def _require(args: Arguments) -> None:
    if args.prompts != BUILTIN and not Path(args.prompts).is_file():
        raise UserError(f'--prompts: {args.prompts} is no file; give one of JSON lines, or "{BUILTIN}"')
    for name in ("tokens", "minutes", "disk", "workers"):
        if getattr(args, name) <= 0:
            raise UserError(f"--{name} must be above 0, it is {getattr(args, name)}")


def _run(program: Sequence[str]) -> int:
    """In a process of its own, since it needs torch. A Ctrl-C reaches both, and the process says what is kept."""
    process = subprocess.Popen(program)  # noqa: S603  our arguments
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            code = process.wait()
            return _INTERRUPTED if code < 0 else code
