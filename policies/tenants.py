"""What an operator allows to the requests of one tenant.

A tenant is what the request's key says, else what the request says itself (`user` in the body). Drafts for texts that
were made to defy them cost rows that others wait for, and who sends such texts can be bounded here, in levels of each
draft, in tokens of all its drafts together, or switched off.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from policies.base import RequestView
from policies.settings import EVERY_OTHER, TenantSettings


class Cap(NamedTuple):
    """What one request may have in one step."""

    k: int  # levels
    chains: bool  # whether trees are out of the question: tokens are counted
    text: str  # one clause for people


def caps(requests: Sequence[RequestView], tenants: Sequence[TenantSettings]) -> Mapping[int, Cap]:
    """By place in `requests`: the caps of those whose tenant has one.

    The tokens that a tenant may draft in a step are shared evenly among its requests that may be drafted for; what is
    left over goes to those that came first.
    """
    if not tenants:
        return {}
    rules = {rule.name: rule for rule in tenants}
    other = rules.get(EVERY_OTHER)
    found: dict[int, Cap] = {}
    for tenant, places in _by_tenant(requests).items():
        rule = rules.get(tenant, other)
        if rule is not None:
            found |= dict(zip(places, _shares(rule, tenant, len(places)), strict=True))
    return found


def _by_tenant(requests: Sequence[RequestView]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        if request.speculate and request.fixed_k != 0:
            places.setdefault(request.tenant, []).append(place)
    return places


def _shares(rule: TenantSettings, tenant: str, requests: int) -> list[Cap]:
    if rule.draft_tokens is None:
        return [] if rule.k_max is None else [_levels(rule.k_max, tenant)] * requests
    each, over = divmod(rule.draft_tokens, requests)
    return [
        _tokens(rule, tenant, each + 1, requests) if place < over else _tokens(rule, tenant, each, requests)
        for place in range(requests)
    ]


@lru_cache(maxsize=1024)
def _levels(k: int, tenant: str) -> Cap:
    return Cap(k, chains=False, text=f'tenant cap: "{tenant}" may have k = {k}')


@lru_cache(maxsize=1024)
def _tokens(rule: TenantSettings, tenant: str, share: int, requests: int) -> Cap:
    if rule.k_max is not None and rule.k_max <= share:
        return _levels(rule.k_max, tenant)._replace(chains=True)
    text = f'tenant cap: {rule.draft_tokens} drafted tokens a step for {requests} requests of "{tenant}"'
    return Cap(share, chains=True, text=text)
