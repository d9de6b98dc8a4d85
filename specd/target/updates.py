"""The target replaced while the daemon serves: another line is opened beside the one that serves, and taken over to.

  find, read ──▶ start ──▶ check ──▶ switch ──▶ the old line ends its requests, and is kept for a rollback
       └───────────┴─────────┴── any fault: the new line is ended, the old one never noticed

Where memory does not hold two engines, the door is shut, the old engine ends with its last request, and the new one is
started in its place; on a fault the old one is started again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from specd.alerts.finding import Finding
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.engineless import NO_ENGINE, engineless
from specd.errors import MemoryShortageError, UpdateBusyError, UpdateError, UserError
from specd.flights import Refusal
from specd.local_paths import local_path
from specd.models.cache import cache_dir
from specd.models.drafts import require_head
from specd.models.refresh import refreshed
from specd.supervisor import EngineFailedError
from specd.target.canary import Canary, Judged
from specd.target.line import DraftChoice, Line
from specd.target.lines import Lines
from specd.target.outcome import Changed, Last, Outcome, fallen, line_as_json
from specd.threads import in_thread

log = logging.getLogger(__name__)

_ENDED: Final = Refusal(
    "the target that this request was for is no longer kept; send it again", "target_changed"
)

_LOADING: Final = "the first target is still loading: ask again once it serves"

_ELSEWHERE: Final = (
    "vLLM is run by others here, who choose its target: have it restarted with another one, and then specd"
)

Rule = Callable[[Sequence[Judged]], str | None]
"""Why what the canary has said rules a line out."""


class TargetUpdates:
    """The one path that every change of the target takes; one at a time."""

    def __init__(
        self,
        lines: Lines,
        *,
        make: Callable[[TargetSection, DraftChoice], Line],
        config: Callable[[], Config],
        canary: Canary,
        alarm: Callable[[Iterable[Finding]], Awaitable[None]],
        heal: Callable[[Line, Sequence[Judged]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """make: a line that is not opened yet. config: the one in force. alarm: takes what the canary found,
        and is done when that cannot be lost. heal: has drafts that have fallen trained anew, in its own time. clock:
        gives Unix seconds.
        """
        self._lines = lines
        self._make = make
        self._config = config
        self._canary = canary
        self._alarm = alarm
        self._heal = heal
        self._clock = clock
        self._doing = ""
        self._task: asyncio.Task[Outcome] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._before: tuple[TargetSection, DraftChoice] | None = None
        self.last: Last | None = None
        self.changed: Changed | None = None
        """None while the target is the one of the start."""

    async def update(self, path: str, revision: str | None = None) -> Outcome:
        """Serve the target at this path, named as `model.target.path` is; revision: what to call it, None for its
        fingerprint. Raises `UpdateError` and keeps the old one where anything is wrong with it, `UpdateBusyError`
        during another update.
        """
        target = self._lines.current.target.model_copy(update={"path": path, "revision": revision or ""})
        return await self.replace(target)

    async def refresh(self, weights: str, revision: str | None = None) -> Outcome:
        """Serve the target that is served now with tensors out of a safetensors file, which may hold some or all of
        them. Raises as `update` does.
        """
        return await self._one_at_a_time(f"refresh from {weights}", lambda: self._refresh(weights, revision))

    async def replace(self, target: TargetSection, draft: DraftChoice | None = None) -> Outcome:
        """Serve this target, with these drafts or with those that there are. Raises as `update` does."""
        return await self._one_at_a_time(f"update to {target.path}", lambda: self._replace(target, draft))

    async def use_head(self, head: str, revision: str | None = None) -> Outcome:
        """Draft with the head in this directory; revision: what to call the drafts. Raises as `update` does."""
        draft = DraftChoice(head, revision or "")
        return await self._one_at_a_time(f"drafts with {head}", lambda: self._use(draft, self._ruled_out))

    async def heal_with(self, head: Path, ruled_out: Rule) -> Outcome:
        """The same, unless what the canary says rules it out. Raises as `update` does."""
        return await self._one_at_a_time(f"drafts with {head}", lambda: self._heal_with(head, ruled_out))

    async def rollback(self) -> Outcome:
        """Serve the previous target again: at once while its engine is kept, else as an update does. Raises as
        `update` does.
        """
        return await self._one_at_a_time("rollback", self._roll_back)

    async def check(self) -> Outcome:
        """Replay the canary on what serves, beside its traffic, and react as configured. Raises as `update` does."""
        return await self._one_at_a_time("canary", self._check)

    async def check_start(self) -> None:
        """Where another pair served when the daemon ended, replay the canary: a restart is an update too."""
        if self._canary.remembers_another(self._lines.current):
            with contextlib.suppress(UserError):  # it is in the log, and shown
                await self.check()

    def snapshot(self) -> dict[str, Any]:
        """For people: what serves, what a rollback would serve, what is going on, how the last attempt ended."""
        before, kept = self._before, self._lines.previous
        return {
            "current": line_as_json(self._lines.current, self._config()),
            "previous": (
                line_as_json(kept, self._config())
                if kept is not None
                else None
                if before is None
                else {"path": before[0].path, "kept": False}
            ),
            "doing": self._doing or None,
            "last": None if self.last is None else asdict(self.last),
            "changed": None if self.changed is None else asdict(self.changed),
            "canary": [judged.document() for judged in self._canary.last],
        }

    async def aclose(self) -> None:
        """Give up what is going on. The lines are their owner's to end."""
        tasks = [task for task in (self._task, self._keeping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one_at_a_time(self, what: str, do: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        if self._doing:
            raise UpdateBusyError(
                f"the target is being changed already ({self._doing}): ask again after that"
            )
        if self._config().engine.backend == "vllm-serve":
            raise UpdateError(_ELSEWHERE)
        if self._lines.identity(self._config()) is None:
            raise UpdateError(NO_ENGINE.message if engineless(self._config()) else _LOADING)
        self._doing = what
        task = self._task = asyncio.create_task(self._done(what, do))
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # seen, if nobody waits any more
        try:
            return await asyncio.shield(task)  # it goes on when whoever asked has left
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise UpdateError(f"{what} was given up, since the server is shutting down") from None

    async def _done(self, what: str, do: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """Do it, and say how it ended."""
        try:
            outcome = await do()
        except (UserError, EngineFailedError, OSError) as error:
            log.error("%s refused, the target stays as it is: %s", what, error)  # noqa: TRY400  a sentence
            self.last = Last(self._clock(), ok=False, text=str(error))
            raise UpdateError(str(error)) from None
        finally:
            self._doing, self._task = "", None
        log.info("%s: %s", what, outcome.text)
        self.last = Last(self._clock(), ok=True, text=outcome.text)
        return outcome

    async def _replace(
        self,
        target: TargetSection,
        draft: DraftChoice | None = None,
        ruled_out: Rule | None = None,
        what: str = "serves now",
    ) -> Outcome:
        began = time.monotonic()
        line = self._make(target, self._lines.current.draft if draft is None else draft)
        try:
            await line.find(self._lines.current)
            await line.read(self._lines.current)
            if line.identity(self._config()) == self._lines.identity(self._config()):
                await line.end(_ENDED)
                return self._outcome(began, f"{target.path} is what is served already", changed=False)
            await self._forget_previous()
            judged = await self._opened(line, ruled_out or self._ruled_out)
        except BaseException:
            await line.end(_ENDED)
            raise
        return await self._switch(line, began, what, judged)

    async def _use(self, draft: DraftChoice, ruled_out: Rule) -> Outcome:
        await in_thread(require_head, Path(draft.head), self._lines.current.path, self._config().model.draft)
        what = f"is drafted for with the head in {draft.head} now"
        return await self._replace(self._lines.current.target, draft, ruled_out, what)

    async def _heal_with(self, head: Path, ruled_out: Rule) -> Outcome:
        before = self._lines.current.draft
        outcome = await self._use(DraftChoice(str(head)), ruled_out)
        if (
            not before.head
        ):  # then heads are found by the targets that they were trained for, and so will this one be
            self._lines.current.draft = before
        return outcome

    async def _refresh(self, weights: str, revision: str | None) -> Outcome:
        current = self._lines.current
        spared = {line.path for line in self._lines.all} | (
            {Path(self._before[0].path)} if self._before else set()
        )
        path = await in_thread(refreshed, current.path, local_path(weights), cache_dir(), spared)
        target = current.target.model_copy(update={"path": str(path), "revision": revision or ""})
        return await self._replace(target)

    async def _opened(self, line: Line, ruled_out: Rule) -> tuple[Judged, ...]:
        """Have an engine run it that was checked; what the canary says."""
        try:
            line.start("behind")
            await line.ready()
        except MemoryShortageError as shortage:
            if self._config().model.target.update.room == "beside":
                raise
            log.info("no memory for two engines (%s): requests are held until the new one serves", shortage)
            return await self._in_its_place(line, ruled_out)
        return await self._judged(line, ruled_out)

    async def _in_its_place(self, line: Line, ruled_out: Rule) -> tuple[Judged, ...]:
        """The same where there is no room for two. The door stays shut until the switch, or the old one is back."""
        old = self._lines.current
        if self._canary.enabled:
            await self._canary.ask(old)
        self._lines.hold()
        try:
            await self._emptied(old)
            await old.stop(_ENDED)
            line.start("alone")
            await line.ready()
            return await self._judged(line, ruled_out)
        except BaseException:
            await line.end(_ENDED)
            self._lines.resume()
            raise

    async def _judged(self, line: Line, ruled_out: Rule) -> tuple[Judged, ...]:
        """What the canary says of a line before it takes traffic. Raises `UpdateError` where that rules it out."""
        judged = await self._canary.judge(self._lines.current, line) if self._canary.enabled else ()
        if why_not := ruled_out(judged):
            raise UpdateError(why_not)
        return judged

    def _ruled_out(self, judged: Sequence[Judged]) -> str | None:
        bad = [each for each in judged if each.bad]
        if not bad or self._config().drift.on_canary_fail != "rollback":
            return None
        return f"{bad[0].text()}; drift.on_canary_fail = rollback does not let it serve"

    async def _roll_back(self) -> Outcome:
        changed = self.changed
        outcome = await self._serve_previous()
        if self.changed is not None and self.changed is not changed:
            self.changed = replace(self.changed, by="rollback")
        return outcome

    async def _serve_previous(self) -> Outcome:
        began = time.monotonic()
        kept = self._lines.previous
        if kept is not None and kept.runs and kept.supervisor.info is not None:
            return await self._switch(kept, began, "serves again")
        if self._before is None:
            raise UserError("there is no previous target: nothing was updated since the start")
        return await self._replace(*self._before)

    async def _check(self) -> Outcome:
        began, line = time.monotonic(), self._lines.current
        judged = await self._canary.judge_serving(line)
        text = "; ".join(each.text() for each in judged) or "canary: nobody drafts, so nothing can be said"
        rolls_back = any(each.bad for each in judged) and self._config().drift.on_canary_fail == "rollback"
        await self._alarm([each.finding() for each in judged])
        if rolls_back and self._before is not None:
            return await self._roll_back()
        self._react(line, judged)
        return self._outcome(began, text, judged, changed=False)

    async def _switch(self, line: Line, began: float, what: str, judged: tuple[Judged, ...] = ()) -> Outcome:
        self._stop_keeping()
        left = self._lines.current
        # where it lies by now, since a link that was followed may lead elsewhere when it is to be served again
        self._before = (left.target.model_copy(update={"path": str(left.path.resolve())}), left.draft)
        self._note_change(left, line)
        self._lines.switch(line)
        self._lines.release()
        if self._config().model.target.update.in_flight == "rerun":
            left.supervisor.flights.recall()
        self._keeping = asyncio.create_task(self._keep(left))
        outcome = self._outcome(began, f"{line.target.path} {what}{fallen(judged)}", judged)
        self._react(line, judged)
        if self._canary.enabled:
            self._canary.serves(line)
        await self._alarm([*line.findings(self._config()), *(each.finding() for each in judged)])
        return outcome

    def _note_change(self, left: Line, line: Line) -> None:
        """Of another head for the same target, nothing."""
        before, now = left.identity(self._config()), line.identity(self._config())
        if before is not None and now is not None and before.target_revision != now.target_revision:
            self.changed = Changed(self._clock(), "update", before.target_revision)

    def _react(self, line: Line, judged: Iterable[Judged]) -> None:
        bad = [each for each in judged if each.bad]
        if not bad:
            return
        match self._config().drift.on_canary_fail:
            case "off":
                proposers = [each.proposer for each in bad]
                line.silence(proposers)
                log.warning("%s draft no more: drift.on_canary_fail = off", ", ".join(proposers))
            case "ngram":
                line.look_up()
                log.warning("prompt lookup drafts alone: drift.on_canary_fail = ngram")
            case "retrain":
                self._heal(line, bad)
            case "alert" | "rollback":
                pass

    async def _keep(self, line: Line) -> None:
        """Let the requests in it end, and end it once it has been kept for long enough."""
        await line.supervisor.flights.empty()
        self._lines.share()
        if line.runs:
            await asyncio.sleep(self._config().model.target.update.keep_seconds)
        await self._drop(line)

    async def _drop(self, line: Line) -> None:
        self._lines.previous = None
        self._lines.share()
        await line.end(_ENDED)

    async def _forget_previous(self) -> None:
        """Make room: three targets at a time are too many."""
        self._stop_keeping()
        if self._lines.previous is not None:
            previous = self._lines.previous
            await self._emptied(previous)
            await self._drop(previous)

    async def _emptied(self, line: Line) -> None:
        """The requests in it have as long to end as at a shutdown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config().server.drain_seconds):
                await line.supervisor.flights.empty()

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def _outcome(
        self, began: float, text: str, judged: tuple[Judged, ...] = (), *, changed: bool = True
    ) -> Outcome:
        identity = self._lines.identity(self._config())
        assert identity is not None, "only what is known serves"
        seconds = round(time.monotonic() - began, 3)
        return Outcome(changed, text, identity.target_revision, identity.draft_revision, seconds, judged)
