"""What an operator allows to the requests of one tenant, and a request to itself.

A tenant is what the request's key says, else what the request says itself (`user` in the body). Drafts for texts that
were made to defy them cost rows that others wait for, and who sends such texts can be bounded here, in levels of each
draft, in tokens of all its drafts together, or switched off.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from policies.base import Reason, RequestView
from policies.settings import EVERY_OTHER, TenantSettings


class Cap(NamedTuple):
    """What one request may have in one step."""

    k: int  # levels
    chains: bool  # whether trees are out of the question: tokens are counted
    text: str  # one clause for people
    reason: Reason = Reason.TENANT_CAP


def caps(requests: Sequence[RequestView], tenants: Sequence[TenantSettings]) -> Mapping[int, Cap]:
    """By place in `requests`: the caps of those that have one, by their tenant's entry or by their own word.

    The tokens that a tenant may draft in a step are shared evenly among its requests that may be drafted for; what is
    left over goes to those that came first.
    """
    found = _of_tenants(requests, tenants) if tenants else {}
    own = [request.k_max for request in requests]
    if own.count(None) == len(own):
        return found
    return found | {
        place: _own(k_max, found.get(place)) for place, k_max in enumerate(own) if k_max is not None
    }


def _own(k_max: int, other: Cap | None) -> Cap:
    """Of a request that allows itself so much, where its tenant may have another cap."""
    if other is not None and other.k <= k_max:
        return other
    chains = other is not None and other.chains
    return Cap(k_max, chains, f"request cap: it allows k = {k_max}", Reason.REQUEST_CAP)


def _of_tenants(requests: Sequence[RequestView], tenants: Sequence[TenantSettings]) -> dict[int, Cap]:
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
        if request.speculate and request.fixed_k != 0 and request.k_max != 0:
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
