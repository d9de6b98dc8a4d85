"""`specd demo`: the whole of specd in three minutes."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from specd.bench.client import connect as connect_client
from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.values import number, require_writable
from specd.demo import picture
from specd.demo.crowd import Crowd
from specd.demo.daemon import Daemon, fresh, running
from specd.demo.hook import Notice, hook
from specd.demo.reordered import reordered
from specd.demo.screen import screen, summary
from specd.demo.story import Pace, Screen, Story, Told
from specd.errors import DaemonError, UserError
from specd.models.cache import cache_dir
from specd.models.resolve import DEMO, demo_directory, resolve_target

_AT_MOST: Final = 270.0
"""Seconds: a demo that goes on for longer has failed."""
_TOKENS: Final = 64
_NEEDS: Final = "eagle"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
The demo model under a load ramp, then under an update that changes no word of its text and ruins its draft: what
the controller and the alarm do about it, in about three minutes, and as a picture. Starts a daemon of its own, with
a receiver for its webhooks, or drives one that serves the demo model already; that one gets its target back.""",
        """
        specd demo
        specd demo --plot demo.png
        specd demo --url http://127.0.0.1:8000 --admin 127.0.0.1:8001""",
    )
    add_admin_arguments(parser)
    parser.add_argument("--url", metavar="URL", help="a daemon that runs (default: starts one)")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="write the picture")
    parser.add_argument(
        "--phase",
        type=number(float, 1, 15),
        default=Pace().phase,
        metavar="S",
        help="seconds of each phase of the ramp (default: %(default)g)",
    )


def run(args: Arguments) -> int:
    """Show it, then sum it up."""
    if args.admin and not args.url:
        raise UserError("--admin without --url: name both, or neither for a daemon of the demo's own")
    require_writable(None, args.plot)
    demo = resolve_target(DEMO)
    console = Console(highlight=False)
    try:
        told = asyncio.run(_within_limits(args, demo, console))
    except TimeoutError:
        raise DaemonError(
            f"the demo was given up after {_AT_MOST:.0f} s: is the machine busy with something else?"
        ) from None
    console.print(*summary(told), sep="\n")
    if args.plot:
        picture.draw(told, args.plot)
        console.print(f"picture: {args.plot}", soft_wrap=True)
    return 0


async def _within_limits(args: Arguments, demo: Path, console: Console) -> Told:
    async with asyncio.timeout(_AT_MOST):
        with tempfile.TemporaryDirectory(prefix="specd-demo-") as folder, screen(console) as shown:
            return await _shown(args, demo, Path(folder), shown)


async def _shown(args: Arguments, demo: Path, folder: Path, shown: Screen) -> Told:
    began = time.monotonic()
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    say = lambda text: shown.say(time.monotonic() - began, text)  # noqa: E731
    async with (
        _theirs(args) if args.url else _ours(folder, notices, shown, say) as daemon,
        connect_client(daemon.url, None, None, _TOKENS) as server,
    ):
        story = Story(
            daemon,
            Crowd(server),
            shown,
            ruin=partial(reordered, demo, folder / "reordered"),
            pace=Pace(phase=args.phase),
            began=began,
            notices=None if args.url else notices,
        )
        return await story.run()


@asynccontextmanager
async def _ours(
    folder: Path, notices: asyncio.Queue[Notice], shown: Screen, say: Callable[[str], None]
) -> AsyncIterator[Daemon]:
    shown.act("a daemon of our own, with the demo model")
    async with hook(notices) as receiver, fresh(folder, receiver, say) as daemon:
        yield daemon


@asynccontextmanager
async def _theirs(args: Arguments) -> AsyncIterator[Daemon]:
    async with running(args.url, connect(args)) as daemon:
        await _require_demo(daemon)
        yield daemon


async def _require_demo(daemon: Daemon) -> None:
    """Raises `UserError` where the update would be of another model than the daemon's, or would ruin nothing."""
    current = (await daemon.look("/admin/v1/target"))["current"]
    if current["path"] not in {DEMO, str(demo_directory(cache_dir()))} or _NEEDS not in current["proposers"]:
        raise UserError(
            f"{daemon.url} serves {current['path']} with drafts by {', '.join(current['proposers']) or 'nobody'}: the"
            f' demo is of model.target.path = "{DEMO}" with its {_NEEDS} head. Leave --url out for a daemon of its own'
        )
