"""Self-healing: a head that the canary found fallen is trained anew for the target that serves, while it serves.

canary  ──▶  prompts, recorded here  ──▶  specd draft train, at idle priority  ──▶  canary  ──▶  the drafts are swapped
             any fault: what drafts goes on drafting, and why is in the log and shown

DIRECTORY/training/<target>-<kind>   the work; gone once it has ended, and gone on with where the daemon ended first
DIRECTORY/heads/<target>-<time>      what came of it, with what the canary said of it
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from engine.api import DraftKind
from policies.canary import CanaryVerdict
from specd.config.drift import RetrainSection
from specd.config.schema import Config
from specd.errors import UpdateBusyError, UserError
from specd.models.cache import hashes, write_json
from specd.models.drafts import PROOF, proven_heads
from specd.models.identity import fingerprint
from specd.models.resolve import public_name
from specd.private import private
from specd.store import heads_dir, store_dir
from specd.target.canary import Judged
from specd.target.errand import Bounds, run
from specd.target.line import Line
from specd.target.outcome import Last, Outcome
from specd.target.reaction import Rule
from specd.tasks import ended
from specd.threads import in_thread
from specd.training import Training

log = logging.getLogger(__name__)

_KINDS: Final[dict[DraftKind, Literal["eagle3", "medusa"]]] = {"eagle": "eagle3", "medusa": "medusa"}
_KEPT_HEADS: Final = 3
_BUSY_PAUSE: Final = 5.0
_LEFT: Final = "another target serves by now"

Use = Callable[[Path, Rule], Awaitable[Outcome]]
"""Draft with the head in this directory, unless what the canary says of it rules that out. Raises `UserError`."""


@dataclass(frozen=True, slots=True)
class Doing:
    """A training that is under way."""

    proposer: DraftKind
    target: str
    """Its fingerprint."""
    since: float
    """Unix seconds."""


class Healer:
    """One training at a time: of the target that serves."""

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        recorded: Callable[[], Awaitable[list[bytes]]],
        serving: Callable[[], Line],
        use: Use,
        program: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """recorded: prompts, a line of JSON each. program: what trains, at idle priority. clock: gives Unix seconds."""
        self._config = config
        self._recorded = recorded
        self._serving = serving
        self._use = use
        self._program = program
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._target: Path | None = None
        """Where what is trained for lies."""
        self._doing: Doing | None = None
        self.last: Last | None = None
        """How the last training ended."""

    def begin(self, line: Line, fallen: Sequence[Judged]) -> None:
        """Train for those of them who draft with a head: for the first, since a target has one."""
        proposer = next((one.proposer for one in fallen if one.proposer in _KINDS), None)
        if proposer is None:
            names = ", ".join(one.proposer for one in fallen)
            log.warning(
                "%s drafts without a head: drift.on_canary_fail = retrain can do nothing for it", names
            )
            return
        self._target = line.path
        self._task = asyncio.create_task(self._heal(line, proposer, self._task))

    def go_on(self, line: Line) -> None:
        """Where the last daemon ended in the middle of a training for this target, go on with it."""
        found = [kind for kind in line.proposers if kind in _KINDS]
        if found and self._config().drift.on_canary_fail == "retrain":
            self._target = line.path
            self._task = asyncio.create_task(self._go_on(line, found[0]))

    def switched(self, line: Line) -> None:
        """This line serves from now on: of another target, it ends what is under way."""
        if self._task is None or self._task.done() or line.path == self._target:
            return
        self._task.cancel()
        self.last = Last(self._clock(), ok=False, text=_LEFT)
        log.warning("no head is trained any more: %s", _LEFT)

    async def aclose(self) -> None:
        """End what is under way; the next daemon goes on with it."""
        await ended(self._task)

    def snapshot(self) -> dict[str, Any]:
        """For people."""
        return {
            "doing": None if self._doing is None else asdict(self._doing),
            "last": None if self.last is None else asdict(self.last),
        }

    async def _go_on(self, line: Line, proposer: DraftKind) -> None:
        target = await in_thread(fingerprint, line.path, hashes())
        if self._work(target, proposer).exists():
            await self._heal(line, proposer, None)

    async def _heal(self, line: Line, proposer: DraftKind, before: asyncio.Task[None] | None) -> None:
        await ended(before)
        try:
            target = await in_thread(fingerprint, line.path, hashes())
            self._doing = Doing(proposer, target, self._clock())
            log.warning("a head for %s is trained anew: drift.on_canary_fail = retrain", proposer)
            text = await self._healed(line, target, proposer)
        except (UserError, OSError) as error:
            log.error("no better head for %s, what drafts goes on: %s", proposer, error)  # noqa: TRY400  a sentence
            self.last = Last(self._clock(), ok=False, text=str(error))
        except Exception:
            log.exception("the training of a head failed")
            self.last = Last(self._clock(), ok=False, text="specd failed at it; its log says more")
        else:
            log.warning("a head that was trained anew drafts now: %s", text)
            self.last = Last(self._clock(), ok=True, text=text)
        finally:
            self._doing = None

    async def _healed(self, line: Line, target: str, proposer: DraftKind) -> str:
        """What the canary says of the new head, which drafts by then. Raises `UserError`."""
        work = self._work(target, proposer)
        await in_thread(_only, work)
        try:
            head = await self._trained(line, target, proposer, work)
            outcome = await self._proven(head, target, proposer)
        except Exception:
            await in_thread(shutil.rmtree, work, ignore_errors=True)
            raise
        await in_thread(shutil.rmtree, work, ignore_errors=True)
        return next(one.text() for one in outcome.canary if one.proposer == proposer)

    async def _trained(self, line: Line, target: str, proposer: DraftKind, work: Path) -> Path:
        """A directory with a head of which nothing is known yet."""
        settings, out = self._config().drift.retrain, work / "out"
        training = Training(
            kind=_KINDS[proposer],
            target=line.path,
            name=public_name(line.target.path),
            fingerprint=target,
            prompts=str(await self._prompts(settings, work)),
            out=out,
            tokens=settings.tokens,
            minutes=settings.minutes,
            disk=settings.disk_gb,
            seed=0,
            workers=settings.workers,
        )
        bounds = Bounds(settings.limit_minutes * 60, int(settings.disk_gb * 1e9))
        await run([*self._program, *training.arguments()], work, work / "log", bounds)
        head = heads_dir(self._config().store) / f"{target}-{self._clock():.0f}"
        await in_thread(_moved, out, head)
        return head

    async def _prompts(self, settings: RetrainSection, work: Path) -> Path:
        """A file of them, for specd's user alone."""
        if settings.prompts is not None:
            return settings.prompts.expanduser()
        found = await self._recorded()
        if len(found) < settings.least_prompts:
            raise UserError(
                f"{len(found)} prompts are recorded, and drift.retrain.least_prompts asks for "
                f"{settings.least_prompts}: wait for more, set telemetry.prompts_recorded, or name a file with "
                "drift.retrain.prompts"
            )
        file = work / "prompts.jsonl"
        await in_thread(_write, file, b"".join(line + b"\n" for line in found))
        return file

    async def _proven(self, head: Path, target: str, proposer: DraftKind) -> Outcome:
        """Have it draft, if the canary finds it better; else it goes."""
        try:
            outcome = await self._used(head, target, proposer)
            await in_thread(write_json, head / PROOF, outcome.document())
        except BaseException:
            await in_thread(shutil.rmtree, head, ignore_errors=True)
            raise
        for older in (await in_thread(proven_heads, head.parent))[_KEPT_HEADS:]:
            await in_thread(shutil.rmtree, older, ignore_errors=True)
        return outcome

    async def _used(self, head: Path, target: str, proposer: DraftKind) -> Outcome:
        while True:
            if await in_thread(fingerprint, self._serving().path, hashes()) != target:
                raise UserError(_LEFT)
            try:
                return await self._use(head, partial(_no_better, proposer))
            except UpdateBusyError:
                await asyncio.sleep(_BUSY_PAUSE)

    def _work(self, target: str, proposer: DraftKind) -> Path:
        return store_dir(self._config().store) / "training" / f"{target}-{_KINDS[proposer]}"


def _no_better(proposer: DraftKind, judged: Sequence[Judged]) -> str | None:
    """Why a head that was trained anew may not draft."""
    found = next((each for each in judged if each.proposer == proposer), None)
    if found is None:
        return f"the canary was not asked of {proposer}, so nobody knows whether the new head is better"
    if found.comparison.verdict is CanaryVerdict.FINE and found.comparison.change > 0:
        return None
    return f"the new head is no better than the one before: {found.text()}"


def _only(work: Path) -> None:
    """Nothing is left of trainings for other targets."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in work.parent.iterdir():
        if other != work:
            shutil.rmtree(other, ignore_errors=True)


def _moved(out: Path, head: Path) -> None:
    shutil.rmtree(out / "work", ignore_errors=True)
    head.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    out.rename(head)


def _write(file: Path, content: bytes) -> None:
    with open(file, "wb", opener=private) as opened:
        opened.write(content)
