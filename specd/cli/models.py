"""`specd models`: fetch the demo model, check a model, or a target and its draft model."""

import sys
from pathlib import Path

from engine.pairing.pair import misfit
from specd.cli.parser import CACHE, Arguments, Parser, describe
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
        specd models check ./model-q4_0.gguf    the same of a GGUF file
        specd models check demo ./small-model   can the second one draft for the first one?""",
        files=CACHE,
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
        "draft",
        metavar="DRAFT",
        nargs="?",
        help="a smaller model that is to draft for TARGET, named likewise",
    )
    check.add_argument(
        "--mapped",
        action="store_true",
        help="DRAFT may have another tokenizer, as with model.draft.vocabulary = mapped",
    )
    check.set_defaults(action=_check)


def run(args: Arguments) -> int:
    """Do what was asked."""
    args.action(args)
    return 0


def _fetch(_args: Arguments) -> Path:
    return fetch_demo(cache_dir(), lambda line: print(line, file=sys.stderr, flush=True))


def _check(args: Arguments) -> None:
    target = _check_one(args.target)
    if args.draft is None:
        return
    draft = _check_one(args.draft)
    if target is None or draft is None:
        raise UserError("the two cannot be compared before a first `specd run` has dequantised the GGUF file")
    fault = misfit(target, draft, mapped=args.mapped)
    if fault is not None:
        raise UserError(f"{draft} cannot draft for {target}: {fault}")
    print(f"ok: {draft} can draft for {target}")


def _check_one(name: str) -> Path | None:
    """Where a model lies that can be served; None for one that is still to be converted."""
    waiting = still_to_convert(name)
    if waiting is not None:
        print(f"ok: {waiting} can be served; the first start dequantises it to bfloat16, into the cache")
        return None
    path = resolve_target(name, download=False)
    print(f"ok: {path} is complete and can be served")
    return path
