"""A target with the engine that runs it. An update makes another line and then leads new requests to it.

files    where the target lies, and what drafts for it
model    the files read: revision, tokenizer, chat template
engine   a process of its own under a supervisor of its own, with a KV pool and a prefix cache that no other line sees
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from engine.api import Configure, DraftKind, DraftSettings, Launch, Ready, Share
from policies.cost import StepCosts
from policies.profile import with_load
from policies.settings import PolicySettings
from specd.admission.turnstile import weight_of
from specd.alerts.finding import Finding, Verdict
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.errors import ModelError
from specd.flights import Refusal, UnservedError
from specd.launching import launch_of
from specd.memory import give_back
from specd.serving import ServedModel, load_served
from specd.supervisor import EngineFailedError, EngineState, Limits, Supervisor
from specd.target.files import DraftChoice, Files, cost_alike, find_files
from specd.threads import in_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pair of models numbers are about."""

    target_revision: str
    draft_revision: str
    quantization: str
    fingerprint: str
    """Of the target's files, whatever it is called."""


class Line:
    """One target, from its files to its engine's end. Whoever starts one must `end` it."""

    def __init__(
        self,
        target: TargetSection,
        draft: DraftChoice,
        command: Sequence[str],
        config: Callable[[], Config],
    ) -> None:
        """config: the one in force, asked for at each start of the engine."""
        self.target = target
        self.draft = draft
        self.files: Files | None = None
        self.fallen: frozenset[DraftKind] = frozenset()
        """Whose acceptance fell, by the canary."""
        self._silenced: frozenset[DraftKind] = frozenset()
        self._looks_up = False
        self._costs: StepCosts | None = None
        self._share: Share = "alone"
        self._config = config
        self._model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._run: asyncio.Task[None] | None = None
        self.supervisor = Supervisor(
            command=command,
            launch=self.launch,
            limits=self._limits,
            window=2 * config().engine.max_running,
            weight=lambda tenant: weight_of(tenant, config().server.limits),
        )

    @property
    def known(self) -> ServedModel | None:
        """The model, once its files have been read."""
        read = self._model.done() and not self._model.cancelled() and self._model.exception() is None
        return self._model.result() if read else None

    def unready(self) -> str | None:
        """Why it would not answer now, if so."""
        match self.supervisor.state:
            case EngineState.READY if self.known is not None:
                return None
            case EngineState.DOWN | EngineState.FAILING:
                death = self.supervisor.last_death
                return f"the engine stopped ({death.text if death else 'unknown'}) and is started again"
            case _:
                return f"the model is loading: {self.supervisor.loading}".rstrip(": ")

    async def model(self) -> ServedModel:
        """The model, waiting for its files to be read. Raises `UnservedError` if that never comes."""
        return await asyncio.shield(self._model)

    async def find(self, serving: "Line | None" = None, head: Path | None = None) -> None:
        """Find the files; serving: the line that this one is to replace; head: that drafted before there was any line.
        Raises `UserError`.
        """
        replaced = None if serving is None else serving.files
        goes_on = replaced if serving is not None and serving.draft == self.draft else None
        if goes_on is not None:
            head = goes_on.last_head
        self.files = await in_thread(
            find_files, self._config(), self.target, self.draft, head, updating=goes_on is not None
        )
        if serving is not None and replaced is not None and serving.target.like(self.target):
            same = await in_thread(cost_alike, replaced, self.files)
            self._costs = serving.supervisor.costs if same else None

    async def read(self, serving: "Line | None" = None) -> None:
        """Read what was found; serving: as above. Raises `UserError`."""
        files, known = self._files(), None if serving is None else serving.known
        self._model.set_result(await in_thread(load_served, self.target, files.path, files.drafts, known))

    @property
    def path(self) -> Path:
        """Where the target lies."""
        return self._files().path

    def moved(self, path: Path) -> None:
        """The same target lies there, too: engines that are started from now on read it there."""
        self.files = replace(self._files(), path=path)

    @property
    def last_head(self) -> Path | None:
        """See `Files.last_head`."""
        return self._files().last_head

    @property
    def proposers(self) -> tuple[DraftKind, ...]:
        """Those who draft: the ones that were silenced do not."""
        return tuple(kind for kind in self._kinds() if kind != "none")

    @property
    def drafters(self) -> tuple[str, ...]:
        """Those who may draft, for people and metrics: in an engine of others it is as that says."""
        info = self.supervisor.info
        if info is not None and info.foreign:
            return info.proposers
        return () if self.files is None else self.proposers

    def silence(self, proposers: Collection[DraftKind]) -> None:
        """These draft no more, for as long as there is this line."""
        self._silenced |= frozenset(proposers)
        self.configure(self._config())

    def look_up(self) -> None:
        """Nobody drafts any more but prompt lookup, for as long as there is this line."""
        self._looks_up = True
        self.configure(self._config())

    def start(self, share: Share) -> None:
        """Start the engine of what was found, with its share of the machine."""
        self._share = share
        self._run = asyncio.create_task(self.supervisor.run())

    def move(self, share: Share) -> None:
        """Have its engine, and any that is started after it, take another share of the machine."""
        self._share = share
        self.supervisor.move(share)

    @property
    def runs(self) -> bool:
        """Whether there is an engine, or one is being restarted."""
        return self._run is not None and not self._run.done()

    async def stop(self, why: Refusal) -> None:
        """End what is in it, and the engine; it can be started again."""
        self.supervisor.flights.lose_all(why)
        await self._ended()

    async def ready(self) -> Ready:
        """Wait for the engine. Raises `ModelError` where it refuses to start, `EngineFailedError` where it fails again
        and again.
        """
        assert self._run is not None, "started first"
        info = asyncio.ensure_future(self.supervisor.engine_info())
        info.add_done_callback(
            lambda told: told.cancelled() or told.exception()
        )  # seen, if nobody waits any more
        try:
            await asyncio.wait({self._run, info}, return_when=asyncio.FIRST_COMPLETED)
            if not info.done():
                self._run.result()
            return info.result()
        finally:
            info.cancel()

    async def end(self, why: Refusal) -> None:
        """End what is in it, and the engine. The model is forgotten, since this line is still looked at, and what it
        took goes back to the system, of a line that never served as well.
        """
        self.close(why)
        await self._ended()
        self._model = asyncio.get_running_loop().create_future()
        self.close(why)
        await give_back()

    async def _ended(self) -> None:
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError, ModelError, EngineFailedError):
                await self._run

    def close(self, why: Refusal) -> None:
        """End every request in it, those that wait for the model included, and admit no more."""
        self.supervisor.end_all(why)
        if not self._model.done():
            self._model.set_exception(UnservedError(why))
            self._model.exception()  # marks it as seen: maybe nobody waits

    async def over(self) -> None:
        """Wait for the supervisor's end. Raises what it gave up for."""
        assert self._run is not None, "started first"
        await asyncio.wait({self._run})
        self._run.result()

    def launch(self) -> Launch:
        """What the engine is started with, by the config of now."""
        config = self._config()
        files = self._files()
        costs = self._costs if files.profile is None else files.profile.costs
        launch = launch_of(
            config, self.target, files.path, self._draft(config), self.policy(config), costs=costs
        )
        return structs.replace(launch, share=self._share)

    def configure(self, config: Config) -> None:
        """Hand hot settings to the engine."""
        if self.files is not None:
            self.supervisor.configure(
                Configure(
                    policy=self.policy(config),
                    draft=self._draft(config),
                    verification=config.engine.verification,
                )
            )

    def policy(self, config: Config) -> PolicySettings:
        """As the profile, if there is one, completes it."""
        settings = config.policy.settings()
        profile = self._files().profile
        if profile is None:
            return settings
        return with_load(settings, profile, always=config.policy.load.from_profile)

    def identity(self, config: Config) -> Identity | None:
        """None while the files are being read."""
        model = self.known
        if model is None:
            return None
        info = model.info
        draft = self._draft_revision(model, config)
        return Identity(info.revision, draft, info.quantization, info.fingerprint)

    def _draft_revision(self, model: ServedModel, config: Config) -> str:
        """In an engine of others drafts whoever that was started with: `[model.draft]` can name it, and no more."""
        info = self.supervisor.info
        if info is None or not info.foreign:
            return model.drafts.revision(config.model.draft)
        return model.drafts.name or "+".join(info.proposers) or "none"

    def _draft(self, config: Config) -> DraftSettings:
        return structs.replace(self._files().drafts.settings(config.model.draft), kinds=self._kinds())

    def _kinds(self) -> tuple[DraftKind, ...]:
        if self._looks_up:
            return ("ngram",)
        kinds = tuple(kind for kind in self._files().drafts.kinds if kind not in self._silenced)
        return kinds or ("none",)

    def findings(self, config: Config) -> list[Finding]:
        """For the alarm: what is to be doubted of the pair."""
        identity = self.identity(config)
        if identity is None or self.files is None or not self.files.doubts:
            return []
        labels = {
            "alertname": "SpecdDraftMismatch",
            "severity": "warning",
            "target_revision": identity.target_revision,
            "draft_revision": identity.draft_revision,
        }
        first, *_ = self.files.doubts
        annotations = {"summary": first, "description": ". ".join(self.files.doubts)}
        return [Finding("pair", labels, Verdict.BREACHED, annotations)]

    def _limits(self) -> Limits:
        config = self._config()
        engine = config.engine
        places = engine.max_running + config.server.max_queue
        theirs = engine.backend == "vllm-serve"  # who run vLLM start it when they like
        start = None if theirs else engine.start_seconds
        return Limits(places, engine.hang_seconds, start, config.server.max_unread)

    def _files(self) -> Files:
        assert self.files is not None, "found first"
        return self.files
