"""Who drafts: in simulated rounds of known acceptance and cost, the choice is what brings most for its time."""

import random
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.base import LoadState, LoadView, Observation, Option, Reason, RequestView
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.plan import gain
from policies.settings import LoadSettings, PolicySettings
from tests.policies.steps import A_STEP

ewma = partial(PolicySettings, kind="ewma")

NGRAM, EAGLE, TREE = Option("ngram", 8), Option("eagle", 8), Option("eagle", 8, width=4)
COSTS = StepCosts(steps=((1, 1.0), (2, 1.01)), drafts={"ngram": DraftCost(0.005), "eagle": DraftCost(0.12)})


class World:
    """Requests one after another, whose drafts are accepted by coins of known rates."""

    def __init__(self, seed=1, tokens=120, **settings):
        self.controller = Controller(ewma(**settings), COSTS)
        self.rng = random.Random(seed)
        self.tokens = tokens
        self.left = 0
        self.number = 0
        self.committed = self.spent = 0.0

    def round(self, rates, options=None):
        """One round of the running request; rates: by option's proposer. Returns the decision."""
        if self.left < 1:
            self.controller.forget(f"r{self.number}")
            self.number, self.left = self.number + 1, self.tokens
        offered = (NGRAM, EAGLE) if options is None else options
        view = RequestView(f"r{self.number}", "chat", "t", self.left, 100, True, None, options=offered)
        (decision,) = self.controller.decide(LoadView(1, 0, 0.5), [view])
        kept = 0
        if decision.option is not None:
            proposer, _, grade, width, _ = decision.option
            while kept < decision.k and self.rng.random() < rates[proposer]:
                kept += 1
            examined = min(kept + 1, decision.k)
            self.controller.observe(
                [Observation(view.request, "chat", proposer, decision.tokens, examined, kept, grade, width)],
                A_STEP,
            )
            self.spent += COSTS.round(proposer, decision.k, decision.tokens)
        else:
            self.spent += 1.0
        self.left -= kept + 1
        self.committed += kept + 1
        return decision

    def rounds(self, count, rates, options=None):
        return [self.round(rates, options) for _ in range(count)]

    def speed(self, count, rates, options=None):
        """Tokens for the time of a plain step over so many rounds."""
        self.committed = self.spent = 0.0
        self.rounds(count, rates, options)
        return self.committed / self.spent


def best(rates):
    """What knowing the rates would bring."""
    return max(
        max(gain(rate, rate, [COSTS.round(name, k, k) for k in range(9)]).of) for name, rate in rates.items()
    )


def share(decisions, proposer):
    drafted = [decision for decision in decisions if decision.option is not None]
    return sum(decision.option.proposer == proposer for decision in drafted) / len(decisions)


@pytest.mark.parametrize(
    ("rates", "winner"),
    [
        ({"ngram": 0.2, "eagle": 0.7}, "eagle"),
        ({"ngram": 0.7, "eagle": 0.6}, "ngram"),
        ({"ngram": 0.02, "eagle": 0.6}, "eagle"),
    ],
)
def test_the_better_proposer_is_found_within_200_rounds_and_little_is_lost_after_that(rates, winner):
    world = World()
    world.rounds(200, rates)
    assert share(world.rounds(600, rates), winner) > 0.9
    assert world.speed(3000, rates) > 0.94 * best(rates)


def test_n_grams_draft_where_they_have_a_match_and_the_head_where_they_have_none():
    """No rule says so: it follows from what each brings."""
    world, rng = World(), random.Random(4)
    rates = {"ngram": 0.85, "eagle": 0.6}
    chosen = {True: [], False: []}
    for number in range(800):
        matched = rng.random() < 0.5
        decision = world.round(rates, (NGRAM, EAGLE) if matched else (EAGLE,))
        if number >= 200:
            chosen[matched].append(decision)
    assert share(chosen[True], "ngram") > 0.9
    assert share(chosen[False], "eagle") > 0.95


def test_a_good_match_is_left_to_n_grams_and_a_poor_one_to_the_head():
    """Grades are learned apart: the proposer itself cannot say what its matches are worth."""
    world = World()
    good, poor = Option("ngram", 8, grade=2), Option("ngram", 8, grade=0)
    for _ in range(150):
        world.round({"ngram": 0.9, "eagle": 0.6}, (good, EAGLE))
        world.round({"ngram": 0.1, "eagle": 0.6}, (poor, EAGLE))
    assert share(world.rounds(40, {"ngram": 0.9, "eagle": 0.6}, (good, EAGLE)), "ngram") > 0.85
    assert share(world.rounds(40, {"ngram": 0.1, "eagle": 0.6}, (poor, EAGLE)), "eagle") > 0.85


def test_a_broken_head_is_dropped_and_costs_little():
    """With another to draft, and with none."""
    rates = {"ngram": 0.5, "eagle": 0.01}
    world = World()
    world.rounds(300, {"ngram": 0.5, "eagle": 0.8})
    world.rounds(100, rates)
    assert world.speed(3000, rates) > 0.95 * best({"ngram": 0.5})
    alone = World()
    alone.rounds(300, {"eagle": 0.8}, (EAGLE,))
    alone.rounds(100, rates, (EAGLE,))
    assert alone.speed(3000, rates, (EAGLE,)) > 0.98


def test_a_proposer_that_becomes_better_is_found_within_thirty_looks():
    """One round in 4 * probe_every is a look, so it takes so many rounds of the class, whichever request has them."""
    world = World()
    world.rounds(1500, {"ngram": 0.5, "eagle": 0.05})
    better = {"ngram": 0.5, "eagle": 0.9}
    assert share(world.rounds(30 * 4 * 32, better)[-100:], "eagle") > 0.9


def test_looks_at_what_is_not_chosen_stay_within_their_budget():
    world = World()
    rates = {"ngram": 0.7, "eagle": 0.3}
    world.rounds(300, rates)
    decisions = world.rounds(128 * 10, rates)
    looks = [decision for decision in decisions if decision.reason is Reason.PROBE]
    assert 1 <= len(looks) <= 10


def test_two_that_bring_the_same_do_not_take_turns():
    world = World(tokens=10_000)
    rates = {"ngram": 0.6, "eagle": 0.6 + 0.115}
    world.rounds(200, rates)
    names = [
        decision.option.proposer
        for decision in world.rounds(400, rates)
        if decision.option is not None and decision.reason is not Reason.PROBE
    ]
    assert sum(before != after for before, after in pairwise(names)) < 40


def test_trees_have_estimates_of_their_own_and_no_more_nodes_than_allowed():
    """A level of a tree is accepted more often than one token; here it is worth its rows."""
    world = World(tree_nodes=10)
    for _ in range(200):
        world.round({"eagle": 0.5}, (EAGLE,))
        world.round({"eagle": 0.8}, (TREE,))
    decision = world.round({"eagle": 0.8}, (EAGLE, TREE))
    assert decision.option == TREE
    assert decision.k <= decision.nodes <= 10
    assert decision.nodes == min(4 * decision.k, 10)


options = st.lists(
    st.builds(
        Option,
        st.sampled_from(["ngram", "eagle", "suffix"]),
        st.integers(1, 16),
        st.integers(0, 2),
        st.sampled_from([1, 2, 4]),
        st.integers(0, 4096),
    ),
    max_size=4,
).map(tuple)


@given(
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 30), options), max_size=25),
    st.integers(0, 20),
    st.integers(1, 12),
    st.tuples(st.integers(1, 4), st.integers(1, 16)),
    st.sampled_from(["goodput", "ewma", "static"]),
)
def test_no_draft_exceeds_its_option_its_nodes_or_its_room(steps, tree_nodes, k_max, probes, kind):
    """Under load there are no trees at all, and a chain's tokens are its levels."""
    load = LoadSettings(table=((4, 16), (12, 2)), dwell_steps=2)
    settings = ewma(
        kind=kind, k_max=k_max, tree_nodes=tree_nodes, probe_every=probes[0], probe_k=probes[1], load=load
    )
    controller = Controller(settings, COSTS)
    for running, left, offered in steps:
        view = RequestView("r", "chat", "t", left, 100, True, None, options=offered)
        (decision,) = controller.decide(LoadView(running, 0, 0.5), [view])
        if decision.option is None:
            assert decision.k == decision.tokens == 0
            continue
        assert decision.option in offered
        assert 1 <= decision.k <= min(decision.option.k, k_max, left - 1)
        if decision.option.width == 1:
            assert decision.tokens == decision.k
        else:
            assert controller.load_state is LoadState.FULL
            assert decision.k <= decision.tokens <= tree_nodes
        controller.observe(
            [
                Observation(
                    "r", "chat", decision.option.proposer, decision.tokens, 1, 0, *decision.option[2:4]
                )
            ],
            A_STEP,
        )


def test_the_more_decode_together_the_dearer_a_row_and_the_cheaper_a_level():
    costs = StepCosts(steps=((1, 1.0), (16, 1.15), (32, 2.0)), drafts={"eagle": DraftCost(0.2)})
    rows = [costs.round("none", 2, 2, n) for n in (1, 4, 16)]
    levels = [costs.round("eagle", 2, 2, n) - costs.round("none", 2, 2, n) for n in (1, 4, 16)]
    assert rows == sorted(rows)
    assert levels == sorted(levels, reverse=True)


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6))
def test_measured_costs_never_fall_with_rows_and_are_none_above_what_was_measured(seconds):
    rows = [2**power for power in range(len(seconds))]
    costs = StepCosts.measured(zip(rows, seconds, strict=True), {})
    found = [costs.step(n) for n in range(1, 200)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(found))
    assert costs.step(1) == costs.plain == min(seconds)
    assert all(costs.step(n) <= took * (1 + 1e-9) for n, took in zip(rows, seconds, strict=True))
    assert costs.step(rows[-1]) == pytest.approx(seconds[-1])
    assert costs.table(199)[1:] == pytest.approx(found)


def test_a_moment_in_which_the_machine_was_slow_makes_no_other_step_dear():
    costs = StepCosts.measured([(1, 9.5), (2, 20.0), (4, 11.0), (8, 12.5)], {})
    assert costs.steps == ((1, 9.5), (2, 11.0), (4, 11.0), (8, 12.5))


def test_what_an_operator_says_of_costs_stands_over_what_was_measured():
    measured = StepCosts(steps=((1, 1.0), (2, 1.5)), drafts={"eagle": DraftCost(0.5)})
    assert Controller(ewma(), measured)._picker._costs == measured
    told = Controller(ewma(row_cost=0.0, draft_cost=0.1), measured)._picker._costs
    assert (told.step(40), told.round("eagle", 2, 2)) == (1.0, 1.2)
