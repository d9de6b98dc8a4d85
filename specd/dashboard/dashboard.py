"""The dashboard as a whole: what the daemon starts, and what the admin listener serves of it."""

import time
from typing import Any, Final

from starlette.routing import Route

from specd.dashboard import page
from specd.dashboard.feed import Feed
from specd.dashboard.history import History
from specd.http.alerts import silence_json
from specd.http.events import Events
from specd.view import View

_DECISIONS: Final = 24


class Dashboard:
    """Page, events, and the hour before."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._history = History(view.status)
        self._feed = Feed(
            {
                "status": view.status,
                "alerts": self._alerts,
                "target": view.target,
                "decisions": lambda: view.decisions(_DECISIONS, None),
                "happened": view.happened,
                "crashes": lambda: list(view.crashes.recent),
                "history": self._history.snapshot,
                "fleet": view.fleet,
            }
        )

    def routes(self) -> list[Route]:
        """For the admin listener."""
        return [*page.routes(), Route("/admin/v1/events", Events(self._feed), methods=["GET"])]

    async def run(self) -> None:
        """Remember the last hour, until cancelled."""
        await self._history.run()

    def close(self) -> None:
        """End every stream: a server would wait for them."""
        self._feed.close()

    def _alerts(self) -> dict[str, Any]:
        """As `/admin/v1/alerts` and `/admin/v1/silences` have them."""
        now, alarm = time.time(), self._view.alarm
        silences = [silence_json(one, now) for one in alarm.silences()]
        return {**alarm.overview(), "silences": silences}
