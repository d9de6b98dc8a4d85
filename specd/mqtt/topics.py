"""Which topics there are.

<prefix>/<node>/availability   online or offline, retained
<prefix>/<node>/state          JSON, retained
<prefix>/<node>/target         JSON, retained
<prefix>/<node>/alerts         notifications
<prefix>/<node>/cmd/<verb>     commands to this node, and under <prefix>/all/cmd/<verb> to all
"""

from dataclasses import dataclass

from specd.config.mqtt import FLEET

_OURS = ("availability", "state", "target", "alerts", "cmd")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one node."""

    prefix: str
    node: str

    @property
    def availability(self) -> str:
        """Birth and last will."""
        return self._of("availability")

    @property
    def state(self) -> str:
        """How the daemon stands."""
        return self._of("state")

    @property
    def target(self) -> str:
        """The pair of models that is served."""
        return self._of("target")

    @property
    def alerts(self) -> str:
        """Notifications of alerts."""
        return self._of("alerts")

    @property
    def own(self) -> tuple[str, ...]:
        """All that this node writes to, but for answers."""
        return (self.availability, self.state, self.target, self.alerts)

    @property
    def commands(self) -> tuple[str, ...]:
        """Filters for every command that this node is meant by."""
        return tuple(f"{self.prefix}/{node}/cmd/+" for node in (self.node, FLEET))

    def verb(self, topic: str) -> str | None:
        """Which command a topic stands for, if it is one."""
        head, _, verb = topic.rpartition("/")
        return verb if head in {command.removesuffix("/+") for command in self.commands} else None

    def answerable(self, topic: str) -> bool:
        """Whether an answer may go there.

        specd publishes it in its own name, so nobody may have it sent where commands are read or where a node
        tells of itself.
        """
        if not topic or "+" in topic or "#" in topic or topic.startswith("$"):
            return False
        if not topic.startswith(f"{self.prefix}/"):
            return True
        levels = topic.removeprefix(f"{self.prefix}/").split("/")
        return len(levels) < 2 or levels[1] not in _OURS

    def _of(self, name: str) -> str:
        return f"{self.prefix}/{self.node}/{name}"
