"""A target with the engine that runs it. An update makes another line and then leads new requests to it.

files    where the target lies, and what drafts for it
model    the files read: revision, tokenizer, chat template
engine   a process of its own under a supervisor of its own, with a KV pool and a prefix cache that no other line sees
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.api import Configure, Launch, Ready
from policies.profile import Profile, with_load
from policies.settings import PolicySettings
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.errors import ModelError
from specd.flights import Refusal, UnservedError
from specd.launching import launch_of
from specd.models.cache import hashes
from specd.models.drafts import Drafts, find_drafts
from specd.models.profile import find_profile
from specd.models.resolve import resolve_target
from specd.serving import ServedModel, load_served
from specd.supervisor import EngineFailedError, Limits, Supervisor
from specd.threads import in_thread


@dataclass(frozen=True, slots=True)
class Files:
    """What a target section names, found."""

    path: Path
    drafts: Drafts
    profile: Profile | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which pair of models numbers are about."""

    target_revision: str
    draft_revision: str
    quantization: str


def find_files(config: Config, target: TargetSection) -> Files:
    """Blocking; slow once per model. Raises `UserError`."""
    path = resolve_target(target.path)
    drafts = find_drafts(config.model.draft, path, hashes())
    return Files(path, drafts, find_profile(config, path, drafts, hashes()))


class Line:
    """One target, from its files to its engine's end. Whoever starts one must `end` it."""

    def __init__(self, target: TargetSection, command: Sequence[str], config: Callable[[], Config]) -> None:
        """config: the one in force, asked for at each start of the engine."""
        self.target = target
        self.files: Files | None = None
        self._config = config
        self._model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._run: asyncio.Task[None] | None = None
        self.supervisor = Supervisor(
            command=command,
            launch=self.launch,
            limits=self._limits,
            window=2 * config().engine.max_running,
        )

    @property
    def known(self) -> ServedModel | None:
        """The model, once its files have been read."""
        read = self._model.done() and not self._model.cancelled() and self._model.exception() is None
        return self._model.result() if read else None

    async def model(self) -> ServedModel:
        """The model, waiting for its files to be read. Raises `UnservedError` if that never comes."""
        return await asyncio.shield(self._model)

    async def find(self) -> None:
        """Find the files. Raises `UserError`."""
        self.files = await in_thread(find_files, self._config(), self.target)

    async def read(self) -> None:
        """Read what was found. Raises `UserError`."""
        files = self._files()
        self._model.set_result(await in_thread(load_served, self.target, files.path, files.drafts))

    def start(self) -> None:
        """Start the engine of what was found."""
        self._run = asyncio.create_task(self.supervisor.run())

    async def ready(self) -> Ready:
        """Wait for the engine. Raises `ModelError` where it refuses to start, `EngineFailedError` where it fails again
        and again.
        """
        assert self._run is not None, "started first"
        info = asyncio.ensure_future(self.supervisor.engine_info())
        await asyncio.wait({self._run, info}, return_when=asyncio.FIRST_COMPLETED)
        if not info.done():
            info.cancel()
            self._run.result()
        return info.result()

    async def end(self, why: Refusal) -> None:
        """End what is in it, and the engine."""
        self.close(why)
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
        costs = None if files.profile is None else files.profile.costs
        return launch_of(config, self.target, files.path, files.drafts, self.policy(config), costs=costs)

    def configure(self, config: Config) -> None:
        """Hand hot settings to the engine."""
        if self.files is not None:
            self.supervisor.configure(
                Configure(
                    policy=self.policy(config),
                    draft=self.files.drafts.settings(config.model.draft),
                    verification=config.engine.verification,
                )
            )

    def policy(self, config: Config) -> PolicySettings:
        """As the profile, if there is one, completes it."""
        settings = config.policy.settings()
        profile = self._files().profile
        return settings if profile is None else with_load(settings, profile)

    def identity(self, config: Config) -> Identity | None:
        """None while the files are being read."""
        model = self.known
        if model is None:
            return None
        info = model.info
        return Identity(info.revision, model.drafts.revision(config.model.draft), info.quantization)

    def _limits(self) -> Limits:
        config = self._config()
        engine = config.engine
        places = engine.max_running + config.server.max_queue
        return Limits(places, engine.hang_seconds, engine.start_seconds)

    def _files(self) -> Files:
        assert self.files is not None, "found first"
        return self.files
