"""Over which topics a connection hears of the fleet."""

from collections.abc import AsyncIterator
from typing import Final

from specd.fleet.fleet import Fleet
from specd.mqtt.link import Link

_LONGEST: Final = 2.0


async def follow(link: Link, fleet: Fleet, *, quiet: float) -> AsyncIterator[str]:
    """Subscribe to what nodes tell of themselves, one kind of topic after the other, so that what is retained of many
    nodes does not come all at once; yields what the broker does not allow. quiet: seconds of silence after which
    everything retained has come. Raises `LinkError`.
    """
    for topic in fleet.filters:
        if not await link.subscribe(topic, old_ones=True, as_published=False):
            yield topic
        await link.settled(quiet, _LONGEST)
