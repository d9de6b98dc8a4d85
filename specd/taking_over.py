"""A config comes into force: what may refuse it, and who is told of it."""

from dataclasses import dataclass

from specd.config.schema import Config
from specd.doors import Doors
from specd.engineless import engineless
from specd.errors import UserError
from specd.models.cache import hashes
from specd.models.pair import misfit
from specd.mqtt.bridge import Bridge
from specd.mqtt.presence import settings_of
from specd.reloading import Reloader
from specd.target.files import DraftChoice
from specd.target.lines import Lines
from specd.target.updates import TargetUpdates
from specd.watchers import Watchers


@dataclass(frozen=True, slots=True)
class TakeOver:
    """All who act on keys that a reload may change."""

    reloader: Reloader
    """Has the config that is in force until then."""
    doors: Doors
    lines: Lines
    updates: TargetUpdates
    watchers: Watchers
    bridge: Bridge

    async def __call__(self, config: Config) -> None:
        """Whatever can refuse it comes first, and changes nothing when it does, by `UserError`."""
        if fault := self.lines.shortage(config):
            raise UserError(fault)
        updates = self._updates(config)
        if not updates:
            self._check_pair(config)
        replace_keys = self.doors.read_keys()
        broker = settings_of(config, self.reloader.loaded.sources)
        self.watchers.alarm.manager.configure(config.alerts_told)
        if updates:
            await self._update(config)
        self.watchers.configure(config)
        replace_keys()
        self.bridge.configure(broker)
        self.lines.configure(config)
        self.watchers.identify(self.lines.current, config)

    def _updates(self, config: Config) -> bool:
        """Whether another pair of models is to serve."""
        if engineless(config):
            return False
        model, running = config.model, self.reloader.config.model
        return not model.target.same(running.target) or (
            DraftChoice.of(model.draft) != DraftChoice.of(running.draft)
        )

    def _check_pair(self, config: Config) -> None:
        files = self.lines.current.files
        if files is not None and (fault := misfit(config.model.draft, files.path, hashes())):
            raise UserError(fault)

    async def _update(self, config: Config) -> None:
        try:
            await self.updates.replace(config.model.target, DraftChoice.of(config.model.draft))
        except UserError:
            self.watchers.alarm.manager.configure(self.reloader.config.alerts_told)
            raise
