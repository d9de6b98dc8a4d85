"""What happens in the demo, act by act."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, Literal, Protocol

from specd.demo.crowd import Crowd
from specd.demo.daemon import Daemon
from specd.demo.hook import Notice
from specd.demo.looks import Look, Looker
from specd.tasks import ended

Tone = Literal["plain", "good", "bad"]

_EVERY: Final = 0.5
_WHY: Final = 100  # characters
_QUESTION: Final = "Explain in two sentences what a lighthouse is for."


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take. Seconds."""

    clients: Sequence[int] = (1, 2, 4, 8, 16, 8, 4, 2)
    """Of the load ramp, phase by phase."""
    phase: float = 8.0
    after_update: float = 15.0
    after_repair: float = 12.0
    patience: float = 30.0
    """For what is to come of itself: a delivery, an end."""
    beside: int = 2
    """Clients that chat while the target is changed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the ramp, as it went."""

    clients: int
    k: float | None
    load: str
    tokens_per_second: float
    acceptance: Mapping[str, float]
    """Of the first drafted token, by who drafted."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment."""

    at: float
    name: str


@dataclass(slots=True)
class Told:
    """All that was seen."""

    looks: list[Look] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    answers: int = 0
    failures: int = 0
    same_words: tuple[int, int] = (0, 0)
    """Of the answers to one question before and after the update: how many words agree from the beginning on, of so
    many.
    """

    def when(self, name: str) -> float | None:
        """The moment of the first mark of this name."""
        return next((mark.at for mark in self.marks if mark.name == name), None)


class Screen(Protocol):
    """Where it is told."""

    def act(self, title: str) -> None:
        """Something new begins."""

    def say(self, at: float, text: str, tone: Tone = "plain") -> None:
        """Something happened."""

    def look(self, look: Look) -> None:
        """How things stand."""


class Story:
    """Drives a daemon through all of it."""

    def __init__(
        self,
        daemon: Daemon,
        crowd: Crowd,
        screen: Screen,
        *,
        ruin: Callable[[], Path],
        pace: Pace,
        began: float,
        notices: asyncio.Queue[Notice] | None,
    ) -> None:
        """ruin: makes the target of the update; blocking. began: of `time.monotonic`, from which all times count.
        notices: what a receiver of the daemon's alerts hears; None where they go to others.
        """
        self._daemon = daemon
        self._crowd = crowd
        self._screen = screen
        self._ruin = ruin
        self._pace = pace
        self._began = began
        self._notices = notices
        self._looker = Looker()
        self._alerts: dict[tuple[str, str], str] = {}
        """By fingerprint and beginning: the state that was told."""
        self._updated = False
        self._news = asyncio.Event()
        self.told = Told()

    async def run(self) -> Told:
        """From the first client to the repaired pair. A target that was put in is taken out again, whatever happens."""
        for alert in await self._listed():
            self._alerts[_key(alert)] = alert["state"]  # of before the demo: no news
        try:
            await _until_one_ends(self._act_by_act(), self._watch(), self._listen())
        finally:
            await self._crowd.leave()
            if self._updated:
                await self._daemon.change("/admin/v1/target/rollback")
            self._count()
        return self.told

    async def _act_by_act(self) -> None:
        self._screen.act("a canary is asked what the drafts come to now, to compare with later")
        await self._canary()
        before = await self._answer()
        self._screen.act("a load ramp: more and more clients chat, then fewer again")
        for clients in self._pace.clients:
            await self._phase(clients)
        self._screen.act("an update of the target: the same weights, their hidden units in another order")
        await self._update()
        await self._compare(before)
        await asyncio.sleep(self._pace.after_update)
        await self._until_told("firing")
        self._screen.act("the repair: specd target rollback")
        await self._repair()
        await asyncio.sleep(self._pace.after_repair)

    async def _canary(self) -> None:
        outcome = await self._daemon.change("/admin/v1/target/canary")
        self._say(f"target {outcome['target_revision']}, draft {outcome['draft_revision']}")

    async def _phase(self, clients: int) -> None:
        self._crowd.become(clients)
        first = self.told.looks[-1]
        await asyncio.sleep(self._pace.phase)
        phase = _phase(clients, first, self.told.looks[-1])
        self.told.phases.append(phase)
        self._say(_sentence(phase))
        self._say(f"  {await self._reason()}")

    async def _reason(self) -> str:
        (newest,) = (await self._daemon.look("/admin/v1/decisions?limit=1"))["decisions"] or [None]
        if newest is None:
            return "no rounds yet"
        return shorten(f"why k = {newest['k']}: {newest['text']}", _WHY, placeholder=" …")

    async def _update(self) -> None:
        path = await asyncio.to_thread(self._ruin)
        self._crowd.become(self._pace.beside)
        self._say(f"asked for, while {self._pace.beside} clients go on")
        self._mark("update asked for")
        outcome = await self._daemon.change("/admin/v1/target", {"path": str(path)})
        self._updated = True
        self._mark("update")
        self._say(f"served after {outcome['seconds']:.1f} s: target {outcome['target_revision']}")
        for judged in outcome["canary"]:
            self._say(*_verdict(judged))

    async def _compare(self, before: list[str]) -> None:
        """Whether the text changed with it."""
        after = await self._answer()
        alike = next(
            (place for place, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
            min(len(before), len(after)),
        )
        self.told.same_words = (alike, len(before))
        self._say(
            f"the same question again: {alike} of {len(before)} words as before; the text does not tell"
        )

    async def _repair(self) -> None:
        outcome = await self._daemon.change("/admin/v1/target/rollback")
        self._updated = False
        self._mark("rollback")
        self._say(f"served after {outcome['seconds']:.1f} s: target {outcome['target_revision']}", "good")
        if self.told.when("firing") is not None:
            await self._until_told("resolved")

    async def _until_told(self, state: str) -> None:
        """Until an alert is in this state and whoever listens heard of it. It comes of itself, or is said not to."""
        wanted = [state] if self._notices is None else [state, f"{state} delivered"]
        try:
            async with asyncio.timeout(self._pace.patience):
                while any(self.told.when(name) is None for name in wanted):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._say(f"alert {state}: not within {self._pace.patience:g} s", "bad")

    async def _answer(self) -> list[str]:
        """Words of the answer to the question, greedy."""
        return (await self._crowd.answer(_QUESTION)).split()

    async def _listen(self) -> None:
        while self._notices is not None:
            self._hear(await self._notices.get())
        await asyncio.Future()  # nothing is to be heard, which ends nothing

    def _hear(self, notice: Notice) -> None:
        signed = "signature good" if notice.genuine else "SIGNATURE WRONG"
        kind = f" ({notice.kind})" if notice.kind else ""
        tone: Tone = "good" if notice.status == "resolved" else "bad"
        self._say(f"webhook: {notice.name}{kind} {notice.status}, {signed}", tone)
        self._mark(f"{notice.status} delivered")

    async def _watch(self) -> None:
        while True:
            status = await self._daemon.look("/admin/v1/status")
            look = self._looker.look(self._now(), status, await self._daemon.metrics())
            self._compare_looks(look)
            self.told.looks.append(look)
            self._screen.look(look)
            for alert in await self._listed():
                self._see(alert)
            await asyncio.sleep(_EVERY)

    async def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._daemon.look("/admin/v1/alerts"))["alerts"]
        return found

    def _compare_looks(self, look: Look) -> None:
        last = self.told.looks[-1].load if self.told.looks else look.load
        if look.load != last:
            self._say(f"load state {last} → {look.load}, with {look.running} running")
            self._mark(f"load {look.load}")

    def _see(self, alert: dict[str, Any]) -> None:
        state = alert["state"]
        if self._alerts.get(_key(alert)) == state:
            return
        self._alerts[_key(alert)] = state
        self._mark(state)
        text = alert["annotations"].get("resolution" if state == "resolved" else "summary", "")
        self._say(f"alert {state}: {alert['name']}: {text}", "good" if state == "resolved" else "bad")

    def _count(self) -> None:
        samples = self._crowd.samples
        self.told.answers = len(samples)
        self.told.failures = sum(sample.error is not None for sample in samples)

    def _say(self, text: str, tone: Tone = "plain") -> None:
        self._screen.say(self._now(), text, tone)

    def _mark(self, name: str) -> None:
        self.told.marks.append(Mark(self._now(), name))
        self._news.set()

    def _now(self) -> float:
        return time.monotonic() - self._began


async def _until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Raises what that one raised; the others are ended."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            await ended(task)
    for task in done:
        task.result()


def _key(alert: Mapping[str, Any]) -> tuple[str, str]:
    """The same thing may have fired before."""
    return alert["fingerprint"], alert["startsAt"]


def _phase(clients: int, first: Look, last: Look) -> Phase:
    """What the last look of a phase shows, and the tokens since the first."""
    seconds = last.at - first.at
    speed = (last.tokens - first.tokens) / seconds if seconds else 0.0
    return Phase(clients, last.k, last.load, speed, last.acceptance)


def _sentence(phase: Phase) -> str:
    clients = f"{phase.clients} client{'s' if phase.clients > 1 else ''}"
    k = "-" if phase.k is None else f"{phase.k:.1f}"
    return f"{clients}: load {phase.load}, k {k} on average, {phase.tokens_per_second:.0f} tokens/s"


def _verdict(judged: dict[str, Any]) -> tuple[str, Tone]:
    if judged["verdict"] == "no_evidence":
        return f"canary: {judged['proposer']}: no evidence", "plain"
    text = (
        f"canary: {judged['proposer']} {judged['before']:.2f} → {judged['after']:.2f} "
        f"({judged['low']:+.2f} to {judged['high']:+.2f}): {judged['verdict']}"
    )
    return text, "bad" if judged["verdict"] == "bad" else "good"
