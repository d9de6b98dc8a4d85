"""`[[server.limits]]`: what one tenant, or the holder of one key, may take of the server."""

from collections.abc import Collection, Iterable, Iterator
from typing import Self

from pydantic import model_validator

from specd.config.section import Section, hot


class LimitSection(Section):
    """What the requests of one tenant, or those with one key, may take together."""

    tenant: str | None = hot(
        None,
        'the tenant: what the key\'s line says, else what a request names as user, else "default"; "*" is each that '
        "has no entry, on its own",
        min_length=1,
    )
    key: str | None = hot(None, "or the name of a key", min_length=1)
    requests: int | None = hot(None, "that run or wait at a time; one more gets 429", ge=1)
    requests_per_minute: float | None = hot(None, "so many at once, and then as they come free", gt=0)
    tokens_per_minute: float | None = hot(
        None,
        "of prompts and texts, counted as requests end: who has used more waits until it is made up for",
        gt=0,
    )
    weight: float = hot(1.0, "of a tenant: its share of the engine while others wait too", gt=0, le=1000)

    @model_validator(mode="after")
    def _of_somebody(self) -> Self:
        if (self.tenant is None) == (self.key is None):
            raise ValueError("a limit is for a tenant or for a key: name one of them")
        if self.key is not None and self.weight != 1.0:
            raise ValueError("weight goes with a tenant: its requests share the engine with those of others")
        return self


def limits_of_nobody(limits: Iterable[LimitSection], keys: Collection[str]) -> Iterator[str]:
    """A sentence on each that names a key which nobody has. keys: the names of those that there are."""
    for place, limit in enumerate(limits):
        if limit.key is not None and limit.key not in keys:
            known = f"there are {', '.join(sorted(keys))}" if keys else "none has a name"
            yield f"server.limits.{place}.key: no key is called {limit.key!r}, so it limits nobody; {known}"
