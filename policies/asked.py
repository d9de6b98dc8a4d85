"""What is asked for a step: of all its requests, as columns."""

from collections.abc import Callable
from typing import NamedTuple

from policies.base import Decision
from policies.columns import Options
from policies.lengths import Bools, Ints


class Fields(NamedTuple):
    """Those of the requests' views, each as a column."""

    request: tuple[str, ...]
    traffic_class: tuple[str, ...]
    tenant: tuple[str, ...]
    remaining_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    speculate: tuple[bool, ...]
    fixed_k: tuple[int | None, ...]
    forced: tuple[int, ...]
    options: Options
    k_max: tuple[int | None, ...]


class Allowed(NamedTuple):
    """What a step may do for `b` requests that leave their k to the policy."""

    most: Ints  # [b] levels, by load, tenant and room
    room: Ints  # [b] levels, by room alone
    trees: Bools  # [b] or [1] whether drafts may be wider than a chain
    bound: float | None  # seconds of the step
    sequences: int  # that decode in it, others too
    rows: int  # of it, without these requests' drafts
    drafted: int  # of these, of others' drafts
    context: int  # tokens attended to
    why: Callable[[int], Decision]  # of a request that `most` holds back
