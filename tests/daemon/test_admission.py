"""Who is let in, and whose turn it is: pure, with time as an argument."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.admission.bucket import Bucket
from specd.admission.fair import FairLine, equal
from specd.admission.turnstile import Turnstile, weight_of
from specd.config.limits import LimitSection
from specd.flights import UnservedError


def served(line: FairLine[str], tokens: dict[str, int], turns: int) -> Counter[str]:
    """Turns by tenant, when each turn takes its tenant's tokens and another of the tenant follows."""
    counts: Counter[str] = Counter()
    for _ in range(turns):
        tenant = line.next()
        counts[tenant] += 1
        line.add(tenant, tenant)
        line.used(tenant, tokens[tenant])
        line.left(tenant)
    return counts


def test_tenants_get_equal_tokens_not_equal_turns():
    """Test that a tenant whose requests are four times as long has its turn a quarter as often."""
    line: FairLine[str] = FairLine(equal)
    for tenant in "ab":
        line.add(tenant, tenant)
    counts = served(line, {"a": 100, "b": 400}, 100)
    assert counts["a"] == pytest.approx(80, abs=1)


def test_weights_are_shares():
    """Test that a tenant of weight 3 gets three times the tokens."""
    line: FairLine[str] = FairLine({"a": 3.0, "b": 1.0}.__getitem__)
    for tenant in "ab":
        line.add(tenant, tenant)
    assert served(line, {"a": 10, "b": 10}, 100)["a"] == pytest.approx(75, abs=1)


def test_a_newcomer_does_not_wait_behind_a_crowd():
    """Test that one request of another tenant is next but one, however many wait before it; and FIFO in a tenant."""
    line: FairLine[str] = FairLine(equal)
    for number in range(50):
        line.add("crowd", f"crowd {number}")
    assert line.next() == "crowd 0"
    line.used("crowd", 10)
    line.add("guest", "guest")
    assert [line.next() for _ in range(3)] == ["guest", "crowd 1", "crowd 2"]


def test_nobody_saves_up_by_staying_away():
    """Test that a tenant that comes back after a long time gets its share of now, not all it has missed."""
    line: FairLine[str] = FairLine(equal)
    line.add("a", "a")
    served(line, {"a": 10}, 1000)
    line.add("b", "b")
    assert served(line, {"a": 10, "b": 10}, 20)["b"] <= 11


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "next", "back", "drop", "clear"]))))
def test_the_line_loses_nobody(events):
    """Test by any order of events that all who were added are in line, inside, or were dropped, and that a tenant
    with nothing there is forgotten.
    """
    line: FairLine[int] = FairLine(equal)
    waiting: dict[int, str] = {}
    inside: list[tuple[str, int]] = []
    for number, (tenant, event) in enumerate(events):
        if event == "add":
            line.add(tenant, number)
            waiting[number] = tenant
        elif event == "next" and waiting:
            turn = line.next()
            inside.append((waiting.pop(turn), turn))
        elif event == "back" and inside:
            whose, turn = inside.pop()
            line.put_back(whose, turn)
            waiting[turn] = whose
        elif event == "drop" and waiting:
            first = next(iter(waiting))
            assert line.drop(waiting.pop(first), first)
        elif event == "clear":
            line.clear()
            waiting.clear()
        assert sorted(line) == sorted(waiting)
        assert len(line) == len(waiting)
    for whose, _ in inside:
        line.left(whose)
    assert line._shares.keys() == set(waiting.values())


def test_who_leaves_a_full_house():
    """Test that it is the last of the tenant with most places, and nobody where the newcomer has as many."""
    line: FairLine[str] = FairLine(equal)
    for number in range(3):
        line.add("crowd", f"crowd {number}")
    line.add("small", "small 0")
    held = Counter({"crowd": 5, "small": 1})
    assert line.displaced("guest", held) == "crowd 2"
    assert line.displaced("crowd", held) is None
    assert line.displaced("guest", Counter({"crowd": 1, "small": 1})) is None


def test_a_bucket_says_exactly_when():
    """Test that nothing is to be had a moment before the time it told, and it is at that time; debts included."""
    bucket = Bucket()
    assert bucket.seconds_until(1, 60, now=100.0) == 0
    bucket.take(60, 60, now=100.0)
    wait = bucket.seconds_until(1, 60, now=100.0)
    assert wait == pytest.approx(1.0)
    assert bucket.seconds_until(1, 60, now=100.0 + wait - 0.01) > 0
    assert bucket.seconds_until(1, 60, now=100.0 + wait) == pytest.approx(0.0, abs=1e-9)
    bucket.take(30, 60, now=101.0)
    assert bucket.seconds_until(0, 60, now=101.0) == pytest.approx(29.0)
    assert not bucket.is_full(60, now=130.0)
    assert bucket.is_full(60, now=190.0)


def test_less_than_one_a_minute_is_possible():
    """Test that a bucket holds one at least."""
    bucket = Bucket()
    assert bucket.seconds_until(1, 0.5, now=0.0) == 0
    bucket.take(1, 0.5, now=0.0)
    assert bucket.seconds_until(1, 0.5, now=0.0) == pytest.approx(120.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(turnstile: Turnstile, tenant: str, key: str | None = None) -> tuple[str, int]:
    with pytest.raises(UnservedError) as error, turnstile.enter(tenant, key):
        pass
    assert error.value.refusal.code == "rate_limit_exceeded"
    return error.value.refusal.message, error.value.refusal.retry_after


def used(turnstile: Turnstile, tenant: str, key: str | None = None, *, tokens: int = 0) -> None:
    with turnstile.enter(tenant, key) as ticket:
        ticket.admitted()
        ticket.tokens = tokens


def test_requests_at_a_time_are_each_tenants_own():
    """Test that a tenant at its limit is told so, one of its requests ending lets the next in, and others are free."""
    clock = Clock()
    turnstile = Turnstile(lambda: [LimitSection(tenant="*", requests=2)], clock)
    with turnstile.enter("a", None):
        with turnstile.enter("a", None):
            assert refused(turnstile, "a") == (
                "tenant 'a' has 2 requests running or waiting, and may have 2: come back in 1 s",
                1,
            )
            used(turnstile, "b")
        used(turnstile, "a")


def test_requests_a_minute_come_back_when_told():
    """Test that a refusal counts for nothing, and that the time it names is right."""
    clock = Clock()
    turnstile = Turnstile(lambda: [LimitSection(tenant="a", requests_per_minute=3)], clock)
    for _ in range(3):
        used(turnstile, "a")
    assert refused(turnstile, "a") == ("tenant 'a' may send 3 requests a minute: come back in 20 s", 20)
    used(turnstile, "b")
    clock.now += 19
    assert refused(turnstile, "a")[1] == 1
    clock.now += 1
    used(turnstile, "a")


def test_tokens_a_minute_are_made_up_for():
    """Test that what a request took beyond the limit is waited for before the next."""
    clock = Clock()
    turnstile = Turnstile(lambda: [LimitSection(tenant="a", tokens_per_minute=600)], clock)
    used(turnstile, "a", tokens=800)
    assert refused(turnstile, "a") == ("tenant 'a' may have 600 tokens a minute: come back in 20 s", 20)
    clock.now += 20
    used(turnstile, "a", tokens=1)


def test_a_key_has_limits_beside_its_tenants():
    """Test that both hold, and that the longer wait is told."""
    clock = Clock()
    limits = [LimitSection(tenant="a", requests_per_minute=60), LimitSection(key="ci", requests_per_minute=1)]
    turnstile = Turnstile(lambda: limits, clock)
    used(turnstile, "a", "ci")
    assert refused(turnstile, "a", "ci") == ("key 'ci' may send 1 requests a minute: come back in 60 s", 60)
    used(turnstile, "a", "laptop")


def test_made_up_tenants_do_not_stay_in_memory():
    """Test that accounts with nothing open and nothing owed are forgotten once there are many."""
    clock = Clock()
    turnstile = Turnstile(lambda: [LimitSection(tenant="*", requests_per_minute=60)], clock)
    for number in range(10_000):
        clock.now += 0.1
        used(turnstile, f"made up {number}")
    assert len(turnstile._accounts) < 5000


def test_weights_come_from_the_limits():
    """Test that a tenant has its own, else that of all others, else 1."""
    limits = [LimitSection(tenant="a", weight=4), LimitSection(tenant="*", weight=2), LimitSection(key="k")]
    assert [weight_of(name, limits) for name in "ab"] == [4, 2]
    assert weight_of("b", limits[:1]) == 1
