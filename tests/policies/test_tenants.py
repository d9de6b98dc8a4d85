"""What an operator allows to the requests of one tenant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.base import LoadView, Option, Reason, RequestView
from policies.controller import Controller
from policies.settings import LoadSettings, PolicySettings, TenantSettings
from policies.tenants import caps

CALM = LoadView(running=4, waiting=0, kv_free=1.0)
UNCAPPED = LoadSettings(table=((1000, 16),))


def view(tenant="a", request="r", **rest):
    options = (Option("ngram", 16), Option("eagle", 16, width=4))
    return RequestView(
        **{
            "request": request,
            "traffic_class": "chat",
            "tenant": tenant,
            "remaining_tokens": 100,
            "context_tokens": 50,
            "speculate": True,
            "fixed_k": None,
            "options": options,
            **rest,
        }
    )


def decide(requests, *tenants, **settings):
    policy = Controller(PolicySettings(tenants=tenants, load=UNCAPPED, **settings))
    return policy.decide(CALM, requests)


def test_only_the_requests_of_tenants_with_an_entry_are_capped():
    found = caps(
        [view("a"), view("b"), view("c")], [TenantSettings("b", k_max=2), TenantSettings("d", k_max=0)]
    )
    assert {place: (cap.k, cap.chains) for place, cap in found.items()} == {1: (2, False)}
    assert found[1].text == 'tenant cap: "b" may have k = 2'


def test_the_star_stands_for_each_tenant_without_an_entry_on_its_own():
    """Test that two tenants under the star do not share what it allows, and one with an entry is not under it."""
    rules = [TenantSettings("*", draft_tokens=6), TenantSettings("c", k_max=8)]
    found = caps([view("a"), view("b"), view("a"), view("c")], rules)
    assert [found[place].k for place in range(4)] == [3, 6, 3, 8]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from([None, 0, 3])), max_size=12),
    st.integers(0, 20),
    st.none() | st.integers(0, 5),
)
def test_tokens_are_shared_evenly_and_never_exceeded(requests, tokens, k_max):
    """Test that the shares of those who may be drafted for differ by one at most and add up to no more than allowed."""
    views = [view(tenant, speculate=speculate, fixed_k=k) for tenant, speculate, k in requests]
    found = caps(views, [TenantSettings("a", draft_tokens=tokens, k_max=k_max)])
    drafting = [
        i for i, (tenant, speculate, k) in enumerate(requests) if tenant == "a" and speculate and k != 0
    ]
    assert sorted(found) == drafting
    shares = [found[place].k for place in drafting]
    assert sum(shares) <= tokens
    assert not shares or max(shares) - min(shares) <= 1
    if k_max is None and drafting:
        assert sum(shares) == tokens
    assert all(cap.chains and (k_max is None or cap.k <= k_max) for cap in found.values())


@pytest.mark.parametrize("kind", ["goodput", "ewma", "static"])
def test_a_request_bounds_itself_and_nobody_else(kind):
    """Test that the least of its bound and its tenant's holds, for the length that it names and for probes as well, and
    that the reason says whose it is.
    """
    bounds = [("a", "x", 2), ("b", "y", 3), ("a", "z", 0), ("a", "free", None)]
    asked = [view(*who, k_max=k_max, options=(Option("ngram", 16),)) for *who, k_max in bounds]
    policy = Controller(
        PolicySettings(
            kind, prior=0.95, probe_every=2, probe_k=5, load=UNCAPPED, tenants=(TenantSettings("b", k_max=1),)
        )
    )
    x, y, z, free = policy.decide(CALM, asked)
    assert (x.k, x.reason) == (2, Reason.REQUEST_CAP)
    assert (y.k, y.reason) == (1, Reason.TENANT_CAP)
    assert (z.k, z.reason) == (0, Reason.REQUEST_CAP)
    assert free.k > 3
    for _ in range(8):
        found = policy.decide(CALM, asked)
        assert all(decision.k <= most for decision, most in zip(found, (2, 1, 0, 8), strict=True))
    (named,) = policy.decide(CALM, [view("a", fixed_k=8, k_max=2)])
    assert (named.k, named.reason, named.text) == (2, Reason.REQUEST_CAP, "request cap: it allows k = 2")


def test_a_tenant_that_is_switched_off_gets_no_draft_and_no_probe():
    policy = Controller(
        PolicySettings(tenants=(TenantSettings("a", k_max=0),), load=UNCAPPED, prior=0.01, probe_every=2)
    )
    decisions = [policy.decide(CALM, [view("a", "x"), view("b", "y")]) for _ in range(8)]
    assert all(a.k == 0 and a.reason is Reason.TENANT_CAP for a, _ in decisions)
    assert any(b.reason is Reason.PROBE for _, b in decisions)


def test_a_capped_draft_says_why():
    (decision,) = decide([view(options=(Option("ngram", 16),))], TenantSettings("a", k_max=2), prior=0.95)
    assert (decision.k, decision.reason) == (2, Reason.TENANT_CAP)
    assert decision.text == 'tenant cap: "a" may have k = 2'


def test_where_tokens_are_counted_there_are_no_trees():
    """Test that all drafts of a tenant together have no more tokens than it may have, though trees are offered."""
    requests = [view("a", str(number)) for number in range(4)]
    free = decide(requests, prior=0.7, draft_cost=0.01, row_cost=0.0, tree_nodes=16)
    bound = decide(
        requests,
        TenantSettings("a", draft_tokens=10),
        prior=0.7,
        draft_cost=0.01,
        row_cost=0.0,
        tree_nodes=16,
    )
    assert sum(decision.tokens for decision in free) > 10
    assert all(decision.nodes == 0 for decision in bound)
    assert sum(decision.tokens for decision in bound) <= 10


def test_forced_tokens_are_no_guesses_and_stay():
    (decision,) = decide([view(forced=5)], TenantSettings("a", k_max=0))
    assert (decision.k, decision.reason) == (5, Reason.FORCED)
