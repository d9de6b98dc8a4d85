"""Whatever is configured, offered and shown: no draft is longer, and no step larger, than anything allows."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Decision, LoadState, LoadView, Observation, Option, Reason, RequestView
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.load import most_rows, rules_of
from policies.settings import LoadSettings, PolicySettings, TenantSettings
from tests.policies.steps import A_STEP

COSTS = StepCosts(((1, 8e-3), (64, 8.4e-3), (512, 20e-3)), {"eagle": DraftCost(0.3e-3, 0.1e-3)})
"""Rows are cheap, so that long drafts and trees are wanted."""

options = st.lists(
    st.builds(
        Option,
        st.sampled_from(["ngram", "eagle"]),
        st.integers(1, 16),
        st.integers(0, 2),
        st.sampled_from([1, 1, 2, 4]),
        st.sampled_from([0, 0, 30]),
    ),
    max_size=3,
).map(tuple)

views = st.builds(
    RequestView,
    st.sampled_from("abcdef"),
    st.sampled_from(["chat", "code"]),
    st.sampled_from(["one", "two", "three"]),
    st.integers(1, 20),
    st.just(100),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([None, None, None, 0, 3, 16]),
    st.sampled_from([0, 0, 0, 7]),
    options,
    st.sampled_from([None, None, None, 0, 2]),
)

tables = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=1, max_size=3).map(
    lambda pairs: tuple(sorted(dict(pairs).items()))
)


@st.composite
def rules(draw: st.DrawFn) -> PolicySettings:
    off_above = draw(st.none() | st.integers(0, 40))
    load = LoadSettings(
        table=draw(st.none() | tables),
        off_above=off_above,
        context_table=draw(st.just(()) | tables),
        kv_reserve=draw(st.floats(0, 1)),
        dwell_steps=draw(st.integers(0, 3)),
    )
    tenants = (TenantSettings("one", k_max=draw(st.integers(0, 9))), TenantSettings("*", draft_tokens=7))
    return PolicySettings(
        kind=draw(st.sampled_from(["goodput", "goodput", "ewma", "static", "off"])),
        k_max=draw(st.integers(0, 16)),
        static_k=draw(st.integers(0, 16)),
        prior=draw(st.floats(0, 1)),
        draft_cost=draw(st.none() | st.floats(0, 1)),
        row_cost=draw(st.none() | st.floats(0, 1)),
        tree_nodes=draw(st.integers(0, 20)),
        probe_every=draw(st.integers(1, 5)),
        probe_k=draw(st.integers(1, 16)),
        load=load,
        tenants=tenants[: draw(st.integers(0, 2))],
    )


loads = st.builds(
    LoadView,
    running=st.integers(1, 48),
    waiting=st.integers(0, 1),
    kv_free=st.floats(0, 1),
    context=st.integers(0, 50),
    prefill_rows=st.sampled_from([0, 0, 100]),
)
steps = st.lists(
    st.tuples(loads, st.lists(views, min_size=1, max_size=6, unique_by=lambda view: view.request)),
    min_size=1,
    max_size=12,
)


def up_to(table: tuple[tuple[int, int], ...], count: int) -> int:
    return next((cap for bound, cap in table if count <= bound), table[-1][1])


def allowed_by_load(rules: PolicySettings, load: LoadView) -> int:
    """What no cap in force exceeds, since a tighter one holds at once."""
    reserve, context = rules.load.kv_reserve, rules.load.context_table
    found = [up_to(rules_of(rules).table, load.running)]
    found += [0] * (load.running > rules_of(rules).off_above)
    if context:
        found.append(up_to(context, load.context))
    if load.waiting and load.kv_free < reserve:
        found.append(int(rules.k_max * load.kv_free / reserve))
    return min(found)


def is_within(decision: Decision, view: RequestView, rules: PolicySettings) -> bool:
    """What concerns one request alone."""
    own = [k for k in (view.fixed_k, view.k_max) if k is not None]
    most = min(rules.k_max, view.remaining_tokens - 1, *own)
    if decision.reason is Reason.FORCED:
        return 0 < decision.k <= min(most, view.forced) and decision.option is None and not decision.nodes
    if decision.k == 0:
        return decision.option is None and decision.tokens == 0
    option = decision.option
    assert option in view.options
    is_tree = option.width > 1
    return (
        decision.k <= min(most, option.k)
        and view.speculate
        and rules.kind != "off"
        and (decision.k <= decision.nodes <= rules.tree_nodes if is_tree else not decision.nodes)
    )


def of_tenant(rules: PolicySettings, tenant: str) -> TenantSettings | None:
    named = {rule.name: rule for rule in rules.tenants}
    return named.get(tenant, named.get("*"))


def shown(decision: Decision, view: RequestView, kept: int) -> Observation:
    kept = min(kept, decision.k)
    proposer, grade, width = ("grammar", 0, 1)
    if decision.option:
        proposer, _, grade, width, _ = decision.option
    examined = min(kept + 1, decision.k)
    return Observation(
        view.request, view.traffic_class, proposer, decision.tokens, examined, kept, grade, width
    )


@settings(max_examples=120, deadline=None)
@given(rules(), steps, st.randoms(use_true_random=False))
def test_no_draft_exceeds_any_cap_any_budget_or_what_remains(
    rules: PolicySettings, steps: list[tuple[LoadView, list[RequestView]]], dice: random.Random
) -> None:
    """Test k_max, the request's own k, bound and remaining tokens, the option's levels, the tables of the load, KV,
    tenants' levels and tokens, the nodes of a tree, and the rows that memory is planned for; of every kind of policy.
    """
    controller = Controller(rules, COSTS)
    for load, batch in steps:
        decisions = controller.decide(load, batch)
        assert len(decisions) == len(batch)
        cap = allowed_by_load(rules, load)
        drafted = dict.fromkeys(("one", "two", "three"), 0)
        for view, decision in zip(batch, decisions, strict=True):
            assert is_within(decision, view, rules), (view, decision)
            assert decision.text
            if decision.reason is Reason.FORCED:
                continue
            probe_under_load = controller.load_state is LoadState.OFF and decision.reason is Reason.PROBE
            assert decision.k <= cap or probe_under_load
            drafted[view.tenant] += decision.tokens
            rule = of_tenant(rules, view.tenant)
            assert rule is None or rule.k_max is None or decision.k <= rule.k_max
        for tenant, tokens in drafted.items():
            rule = of_tenant(rules, tenant)
            assert rule is None or rule.draft_tokens is None or tokens <= rule.draft_tokens
        assert len(batch) + sum(each.tokens for each in decisions) <= most_rows(rules, len(batch))
        pairs = zip(batch, decisions, strict=True)
        controller.observe([shown(d, view, dice.randint(0, 16)) for view, d in pairs if d.k], A_STEP)
