"""`specd draft list` and `specd draft check`: what there is to draft with, and whether it fits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from specd.cli.configured import load_config
from specd.cli.parser import Arguments, add_config_arguments
from specd.config.schema import Config
from specd.errors import ModelError, UserError
from specd.local_paths import local_path
from specd.models.draft_files import DraftFiles, inspect
from specd.models.drafts import proven_heads, shipped_heads
from specd.models.pair import draft_model
from specd.models.resolve import resolve_target
from specd.store import heads_dir

_COLUMNS: Final = ("", "KIND", "SIZE", "FITS THE TARGET", "DIRECTORY")


def add_list(actions: Any) -> None:
    """Declare `list`. actions: the subparsers of `specd draft`."""
    parser = actions.add_parser(
        "list", help="the heads in the package, those trained here, and what the config names"
    )
    add_config_arguments(parser)
    parser.set_defaults(action=_list)


def add_check(actions: Any) -> None:
    """Declare `check`. actions: the subparsers of `specd draft`."""
    parser = actions.add_parser("check", help="what is in a directory, and does it fit a target?")
    parser.add_argument("directory", type=Path, metavar="DIR", help="with a draft model or a head")
    parser.add_argument("--target", metavar="TARGET", help="named as in model.target.path")
    parser.add_argument("--mapped", action="store_true", help="a draft model may have another tokenizer")
    parser.set_defaults(action=_check)


def _list(args: Arguments) -> None:
    config = load_config(args).config
    mapped = config.model.draft.vocabulary == "mapped"
    try:
        target = resolve_target(config.model.target.path, download=False)
    except ModelError:
        target = None  # drafts can be listed without it; `specd check` says what is wrong with it
    rows = [_row(origin, files, target, mapped=mapped) for origin, files in _found(config)]
    print(
        _table([_COLUMNS, *rows]) if rows else "no head in the package, and no draft named in [model.draft]"
    )


def _found(config: Config) -> Iterator[tuple[str, DraftFiles]]:
    draft = config.model.draft
    for head in shipped_heads():
        yield "package", inspect(head)
    for head in proven_heads(heads_dir(config.store)):
        yield "trained", inspect(head)
    model = draft_model(draft, download=False)
    if model is not None:
        yield "config", inspect(model)
    if draft.head:
        yield "config", inspect(local_path(draft.head))


def _row(origin: str, files: DraftFiles, target: Path | None, *, mapped: bool) -> tuple[str, ...]:
    fits = "unknown" if target is None else "yes" if files.misfit(target, mapped=mapped) is None else "no"
    return origin, files.kind, _mib(files), fits, str(files.path)


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _mib(files: DraftFiles) -> str:
    return f"{files.weight_bytes / (1 << 20):.0f} MiB"


def _check(args: Arguments) -> None:
    files = inspect(args.directory)
    print(f"ok: {files.path} holds drafts of kind {files.kind}, {_mib(files)} of weights")
    if args.target is None:
        return
    target = resolve_target(args.target, download=False)
    reason = files.misfit(target, mapped=args.mapped)
    if reason is not None:
        raise UserError(f"{files.path} cannot draft for {target}: {reason}")
    print(f"ok: it can draft for {target}")
