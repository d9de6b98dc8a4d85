"""`specd models`: fetch the demo model, check a model."""

import sys
from pathlib import Path

from specd.cli.parser import Arguments, Parser, describe
from specd.errors import UserError
from specd.models.cache import cache_dir
from specd.models.fetch import fetch_demo
from specd.models.resolve import DEMO, resolve_target, still_to_convert


def add_arguments(parser: Parser) -> None:
    """Declare the two subcommands."""
    describe(
        parser,
        "Models are kept in $SPECD_CACHE_DIR, by default ~/.cache/specd.",
        """
        specd models fetch demo                 SmolLM2-135M-Instruct, 93 MB to download, 270 MB on disk
        specd models check ./my-model           can this version serve it?
        specd models check ./model-q4_0.gguf    the same of a GGUF file""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="get a model into the cache, once")
    fetch.add_argument("name", choices=[DEMO], metavar=DEMO, help="the only model that is fetched by name")
    fetch.set_defaults(action=_fetch)
    check = actions.add_parser("check", help="is it complete, and can this version serve it?")
    check.add_argument(
        "target", metavar="TARGET", help='"demo", a directory, a GGUF file, or a hub name already downloaded'
    )
    check.add_argument(
        "draft", metavar="DRAFT", nargs="?", help="not in this version, which has no draft models"
    )
    check.set_defaults(action=_check)


def run(args: Arguments) -> int:
    """Do what was asked."""
    args.action(args)
    return 0


def _fetch(_args: Arguments) -> Path:
    return fetch_demo(cache_dir(), lambda line: print(line, file=sys.stderr, flush=True))


def _check(args: Arguments) -> None:
    if args.draft is not None:
        raise UserError(
            "draft models are not built yet in this version: check the target alone, without DRAFT"
        )
    waiting = still_to_convert(args.target)
    if waiting is not None:
        print(f"ok: {waiting} can be served; the first start dequantises it to bfloat16, into the cache")
        return
    path = resolve_target(args.target, download=False)
    print(f"ok: {path} is complete and can be served")
