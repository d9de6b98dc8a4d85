"""The default rule under the default policy: a collapse silences most of its own evidence."""

from functools import cache
from itertools import takewhile
from random import Random

import pytest

from engine.api import Round
from policies.base import Drafting, LoadView, Observation, Option, RequestView, StepSeen
from policies.controller import Controller
from policies.cost import StepCosts
from policies.settings import PolicySettings
from specd.alerts.finding import Pair
from specd.alerts.lifecycle import Lifecycle, State
from specd.alerts.rules import Evidence, evaluate
from specd.config.alerts import AlertsSection

TOKENS = 120
ROUNDS_PER_SECOND = 20.0
COLLAPSE, LATE = 900.0, 1800.0
GOOD, RUINED = 0.7, 0.02
COSTS = StepCosts(((1, 1 / ROUNDS_PER_SECOND), (2, 1.06 / ROUNDS_PER_SECOND)))


def view(number: int, remaining: int) -> RequestView:
    return RequestView(
        f"r{number}",
        "chat",
        "a",
        remaining,
        TOKENS,
        speculate=True,
        fixed_k=None,
        options=(Option("ngram", 63),),
    )


def a_step(k: int, accepted: int) -> StepSeen:
    """What such a round takes."""
    drafting = (Drafting("ngram", 0.0, 1, k, k),) if k else ()
    return StepSeen(0.0, COSTS.step(1 + k), 1 + k, 0, 0, 1, TOKENS, accepted + 1, drafting)


def a_round(policy: Controller, request: RequestView, rng: Random, acceptance: float) -> Round:
    """One request decodes alone: the policy's k, and coins in place of a model."""
    (decision,) = policy.decide(LoadView(running=1, waiting=0, kv_free=1.0), [request])
    accepted = 0
    while accepted < decision.k and rng.random() < acceptance:
        accepted += 1
    examined = min(accepted + 1, decision.k)
    seen = [Observation(request.request, "chat", "ngram", decision.k, examined=examined, accepted=accepted)]
    policy.observe(seen if decision.k else [], a_step(decision.k, accepted))
    counts = {"drafted": decision.k, "examined": examined, "accepted": accepted}
    return Round(
        request.request, "chat", "ngram", decision.k, reason=decision.reason, text=decision.text, **counts
    )


@cache
def traffic(every: float) -> list[tuple[float, Round]]:
    """A request every so many seconds, whose draft is ruined from `COLLAPSE` on. Longer than any test looks."""
    policy, rng, found = Controller(PolicySettings(), COSTS), Random(7), []
    for number in range(int((COLLAPSE + LATE) / every)):
        now, remaining = number * every, TOKENS
        while remaining > 0:
            acceptance = GOOD if now < COLLAPSE else RUINED
            one = a_round(policy, view(number, remaining), rng, acceptance)
            found.append((now, one))
            remaining -= one.accepted + 1
            now += 1 / ROUNDS_PER_SECOND
        policy.forget(f"r{number}")
    return found


def alarms(every: float, end: float) -> list[tuple[float, State]]:
    """What the default rule announces, asked once a second."""
    (rule,) = AlertsSection().rules
    evidence, lifecycle, announced, asked = Evidence(rule.window_seconds), Lifecycle(), [], 0.0
    for now, one in takewhile(lambda seen: seen[0] < end, traffic(every)):
        while asked <= now:
            findings = evaluate([rule], evidence, Pair("t1", "d1"), asked)
            announced += [(asked, alert.state) for alert in lifecycle.step(findings, asked)]
            asked += 1.0
        evidence.observe([one], now)
    return announced


@pytest.mark.parametrize("every", [7.0, 40.0, 70.0])
def test_a_collapse_is_told_at_low_load(every):
    """Test that the default rule fires within its window and its time, once, and not before the collapse."""
    (rule,) = AlertsSection().rules
    (pending, before), (firing, after) = alarms(every, COLLAPSE + 900)
    assert (before, after) == (State.PENDING, State.FIRING)
    assert COLLAPSE < pending < firing <= COLLAPSE + rule.window_seconds + rule.for_seconds + every


@pytest.mark.parametrize("every", [7.0, 40.0])
def test_a_collapse_leaves_little_evidence(every):
    """Test that the case above is the hard one: six rounds in seven draft nothing, a minute shows too little."""
    (rule,) = AlertsSection().rules
    late = [(now, one) for now, one in traffic(every) if now > COLLAPSE + 600]
    drafted = [now for now, one in late if one.drafted]
    assert len(drafted) < len(late) / 7
    last_minute = [now for now in drafted if now > late[-1][0] - 60]
    assert len(last_minute) < 50
    assert len([now for now in drafted if now > late[-1][0] - rule.window_seconds]) > rule.min_examined
