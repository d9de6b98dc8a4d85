"""The alarm as a whole: what the daemon starts, and what may be asked of it."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from specd.alerts.delivery import Deliveries
from specd.alerts.durable import DurableStore
from specd.alerts.finding import Finding, Verdict
from specd.alerts.lifecycle import fingerprint
from specd.alerts.manager import AlertManager
from specd.alerts.receivers.base import Publisher
from specd.alerts.silences import Silence
from specd.alerts.telling import TEST
from specd.config.schema import Config
from specd.store import store_dir
from specd.telemetry.alarm import AlarmMetrics

_POLL: Final = 0.05


class Alarm:
    """Store, outbox and manager, and the order in which they come and go."""

    def __init__(self, config: Config, metrics: AlarmMetrics) -> None:
        """Raises `UserError` when a receiver cannot be used."""
        self._store = DurableStore(store_dir(config.store))
        alerts = config.alerts_told
        self._deliveries = Deliveries(alerts.receivers, metrics, self._store)
        self.manager = AlertManager(alerts, metrics, self._deliveries, saved=self._store.saved)

    def start(self, publisher: Publisher) -> None:
        """Begin to watch and to send; receivers of kind mqtt by this publisher."""
        self._deliveries.publish_by(publisher)
        self._deliveries.start()
        self.manager.start()

    async def aclose(self, grace: float) -> None:
        """Stop, and give what is on its way `grace` seconds to arrive."""
        await self.manager.aclose()
        await self._deliveries.aclose(grace)

    def overview(self) -> dict[str, Any]:
        """Alerts, and whether those who are to hear of them do."""
        return {
            "alerts": self.manager.snapshot(),
            "receivers": self._deliveries.health(),
            "store": {"durable": self._store.durable, "fault": self._store.fault},
        }

    async def test(self, labels: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """An alert that fires and ends at once, told to every receiver; what came of it after so many seconds.

        Once this returns it is in the outbox, so what has not arrived by then still will.
        """
        own = {**labels, "alertname": "SpecdTest", "severity": "info", "test": secrets.token_hex(4)}
        key = fingerprint(own)
        with self._deliveries.followed(key) as outcomes:
            texts = {"summary": "A test of the way to this receiver", "description": "Nothing is wrong."}
            await self.manager.judge([Finding(TEST, own, Verdict.BREACHED, texts)])
            await self.manager.judge(
                [Finding(TEST, own, Verdict.FINE, {**texts, "resolution": "the test ended"})]
            )
            names = [listener.name for listener in self._deliveries.listeners()]
            await _at_most(seconds, lambda: all(outcomes.get(name, "retried") != "retried" for name in names))
            found = {name: outcomes.get(name, "waiting") for name in names}
        return {"fingerprint": key, "labels": own, "receivers": found}

    def silences(self) -> Sequence[Silence]:
        """In force, to come, or ended within a day."""
        return self.manager.silences()

    async def silence(self, silence: Silence) -> None:
        """Tell nobody of what it matches, from now on. Raises `UserError`."""
        await self.manager.silence(silence)

    async def unsilence(self, name: str) -> bool:
        """Tell again. False where there is no silence of this id."""
        done = self.manager.unsilence(name)
        if done is None:
            return False
        await done
        return True


async def _at_most(seconds: float, condition: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  outcomes come one by one, from several tasks
                await asyncio.sleep(_POLL)
    except TimeoutError:
        pass
