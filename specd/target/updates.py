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
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from specd.alerts.finding import Finding
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.engineless import NO_ENGINE, engineless
from specd.errors import RuledOutError, UpdateBusyError, UpdateError, UserError
from specd.local_paths import local_path
from specd.models.cache import cache_dir
from specd.models.drafts import require_head
from specd.models.refresh import refreshed
from specd.supervisor import EngineFailedError
from specd.target.attempts import Attempts
from specd.target.canary import Canary, Judged
from specd.target.files import DraftChoice
from specd.target.keeping import ENDED, Before, Keeping
from specd.target.line import Line
from specd.target.lines import Lines
from specd.target.opening import Make, Opening
from specd.target.outcome import Changed, Last, Outcome, fallen, line_as_json
from specd.target.reaction import Heal, Reaction, Rule
from specd.tasks import ended
from specd.threads import in_thread

log = logging.getLogger(__name__)

_LOADING: Final = "the first target is still loading: ask again once it serves"

_ELSEWHERE: Final = (
    "vLLM is run by others here, who choose its target: have it restarted with another one, and then specd"
)


_Do = Callable[[], Coroutine[Any, Any, Outcome]]


class TargetUpdates:
    """The one path that every change of the target takes; one at a time."""

    def __init__(
        self,
        lines: Lines,
        *,
        make: Make,
        config: Callable[[], Config],
        canary: Canary,
        alarm: Callable[[Iterable[Finding]], Awaitable[None]],
        heal: Heal,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """config: the one in force. alarm: takes what the canary found, and is done when that cannot be lost. clock:
        gives Unix seconds.
        """
        self._lines = lines
        self._config = config
        self._canary = canary
        self._alarm = alarm
        self._reaction = Reaction(config, heal)
        self._clock = clock
        self._doing = ""
        self._task: asyncio.Task[Outcome] | None = None
        self._keeping = Keeping(lines, config)
        self._opening = Opening(lines, self._keeping, canary, make, config)
        self._learning: asyncio.Task[None] | None = None
        self._before: Before | None = None
        self.attempts = Attempts()
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
        refresh = f"refresh from {weights}"
        return await self._one_at_a_time(refresh, lambda: self._refresh(weights, revision), counts=True)

    async def replace(self, target: TargetSection, draft: DraftChoice | None = None) -> Outcome:
        """Serve this target, with these drafts or with those that there are. Raises as `update` does."""
        update = f"update to {target.path}"
        return await self._one_at_a_time(update, lambda: self._replace(target, draft), counts=True)

    async def follow(self, target: TargetSection) -> Outcome:
        """Serve this target, where nobody waits for the answer. Raises as `update` does."""
        try:
            return await self.replace(target)
        except UpdateBusyError:
            raise
        except UserError as error:
            if self.last is not None and self.last.text == str(error):
                self.attempts.unheard(self.last)
            raise

    async def use_head(self, head: str, revision: str | None = None) -> Outcome:
        """Draft with the head in this directory; revision: what to call the drafts. Raises as `update` does."""
        draft = DraftChoice(head, revision or "")
        return await self._one_at_a_time(
            f"drafts with {head}", lambda: self._use(draft, self._reaction.ruled_out)
        )

    async def heal_with(self, head: Path, ruled_out: Rule) -> Outcome:
        """The same, unless what the canary says rules it out. Raises as `update` does."""
        return await self._one_at_a_time(f"drafts with {head}", lambda: self._heal_with(head, ruled_out))

    async def rollback(self) -> Outcome:
        """Serve the previous target again: at once while its engine is kept, else as an update does. Raises as
        `update` does.
        """
        return await self._one_at_a_time("rollback", self._roll_back, counts=True)

    async def check(self) -> Outcome:
        """Replay the canary on what serves, beside its traffic, and react as configured. Raises as `update` does."""
        return await self._one_at_a_time("canary", self._check)

    @property
    def last_head(self) -> Path | None:
        """The head that drafted when the daemon ended, where nobody has named one."""
        return self._canary.last_head

    async def check_start(self) -> None:
        """Where another pair served when the daemon ended, replay the canary: a restart is an update too. Where nobody
        knows what served, learn what this pair's drafts come to.
        """
        line = self._lines.current
        line.fallen = self._canary.fallen(line)
        self._reaction.hush(line)
        if self._canary.remembers_another(line):
            with contextlib.suppress(UserError):  # it is in the log, and shown
                await self.check()
        else:
            self._canary.serves(line)
            self._learn()

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
                else {"path": before.target.path, "kept": False}
            ),
            "doing": self._doing or None,
            "last": None if self.last is None else asdict(self.last),
            "changed": None if self.changed is None else asdict(self.changed),
            "canary": [judged.document() for judged in self._canary.last],
        }

    async def aclose(self) -> None:
        """Give up what is going on. The lines are their owner's to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await ended(self._learning)
        await self._keeping.aclose()

    async def _one_at_a_time(self, what: str, do: _Do, *, counts: bool = False) -> Outcome:
        if self._doing:
            raise UpdateBusyError(
                f"the target is being changed already ({self._doing}): ask again after that"
            )
        if self._config().engine.backend == "vllm-serve":
            raise UpdateError(_ELSEWHERE)
        if self._lines.identity(self._config()) is None:
            raise UpdateError(NO_ENGINE.message if engineless(self._config()) else _LOADING)
        self._doing = what
        task = self._task = asyncio.create_task(self._done(what, do, counts=counts))
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # seen, if nobody waits any more
        try:
            return await asyncio.shield(task)  # it goes on when whoever asked has left
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise UpdateError(f"{what} was given up, since the server is shutting down") from None

    async def _done(self, what: str, do: _Do, *, counts: bool) -> Outcome:
        """Do it, and say how it ended; counts: among the attempts to change the target."""
        await ended(self._learning)  # what is under way asks the same, and waits for it
        try:
            outcome = await do()
        except (UserError, EngineFailedError, OSError) as error:
            log.error("%s refused, the target stays as it is: %s", what, error)  # noqa: TRY400  a sentence
            self.last = Last(self._clock(), ok=False, text=str(error))
            if counts:
                self.attempts.ended("ruled_out" if isinstance(error, RuledOutError) else "refused", self.last)
            raise UpdateError(str(error)) from None
        finally:
            self._doing, self._task = "", None
            self._learn()
        log.info("%s: %s", what, outcome.text)
        self.last = Last(self._clock(), ok=True, text=outcome.text)
        if counts:
            self.attempts.ended("changed" if outcome.changed else "unchanged", self.last)
        return outcome

    async def _replace(
        self,
        target: TargetSection,
        draft: DraftChoice | None = None,
        ruled_out: Rule | None = None,
        what: str = "serves now",
    ) -> Outcome:
        began, serving = time.monotonic(), self._lines.current
        async with self._opening.read(target, serving.draft if draft is None else draft, serving) as line:
            if line.identity(self._config()) == self._lines.identity(self._config()):
                serving.moved(line.path)
                await line.end(ENDED)
                return self._outcome(began, f"{target.path} is what is served already", changed=False)
            judged = await self._opening.start(line, ruled_out or self._reaction.ruled_out)
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
            {self._before.line.path} if self._before is not None else set()
        )
        path = await in_thread(refreshed, current.path, local_path(weights), cache_dir(), spared)
        target = current.target.model_copy(update={"path": str(path), "revision": revision or ""})
        return await self._replace(target)

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
        return await self._open_again(self._before, began)

    async def _open_again(self, before: Before, began: float) -> Outcome:
        """No canary is asked: it has served, and what it is to be compared with is what was found wrong."""
        target = before.target
        async with self._opening.read(target, before.line.draft, before.line) as line:
            identity = line.identity(self._config())
            if identity is None or identity.fingerprint != before.fingerprint:
                raise UserError(
                    f"what was served before is no longer in {target.path}: other files are there by now. Put the old "
                    "ones back, or update to a copy of them"
                )
            await self._opening.start(line, None)
        line.fallen = before.line.fallen
        self._reaction.hush(line)
        return await self._switch(line, began, "serves again")

    def _learn(self) -> None:
        """Have the canary asked, at leisure, where the next start would have nothing to compare with."""
        line, theirs = self._lines.current, self._config().engine.backend == "vllm-serve"
        if self._canary.enabled and line.proposers and not theirs and self._canary.lacks(line):
            self._learning = asyncio.create_task(self._learned(line))

    async def _learned(self, line: Line) -> None:
        try:
            await self._canary.learn(line)
        except UserError as error:
            log.info("what the drafts come to is not known yet: %s", error)

    async def _check(self) -> Outcome:
        began, line = time.monotonic(), self._lines.current
        judged = await self._canary.judge_serving(line)
        text = "; ".join(each.text() for each in judged) or "canary: nobody drafts, so nothing can be said"
        rolls_back = any(each.bad for each in judged) and self._reaction.rolls_back
        await self._alarm([each.finding() for each in judged])
        if rolls_back and self._before is not None:
            return await self._roll_back()
        self._reaction.to(line, judged)
        self._canary.serves(line)
        return self._outcome(began, text, judged, changed=False)

    async def _switch(self, line: Line, began: float, what: str, judged: tuple[Judged, ...] = ()) -> Outcome:
        self._keeping.stop()
        left = self._lines.current
        self._before = Before.of(left, self._config())
        self._note_change(left, line)
        self._lines.switch(line)
        self._lines.release()
        if self._config().model.target.update.in_flight == "rerun":
            left.supervisor.flights.recall()
        self._keeping.begin(left)
        outcome = self._outcome(began, f"{line.target.path} {what}{fallen(judged)}", judged)
        self._reaction.to(line, judged)
        self._canary.serves(line)
        await self._alarm([*line.findings(self._config()), *(each.finding() for each in judged)])
        return outcome

    def _note_change(self, left: Line, line: Line) -> None:
        """Of another head for the same target, nothing."""
        before, now = left.identity(self._config()), line.identity(self._config())
        if before is not None and now is not None and before.target_revision != now.target_revision:
            self.changed = Changed(self._clock(), "update", before.target_revision)

    def _outcome(
        self, began: float, text: str, judged: tuple[Judged, ...] = (), *, changed: bool = True
    ) -> Outcome:
        identity = self._lines.identity(self._config())
        assert identity is not None, "only what is known serves"
        seconds = round(time.monotonic() - began, 3)
        return Outcome(changed, text, identity.target_revision, identity.draft_revision, seconds, judged)
