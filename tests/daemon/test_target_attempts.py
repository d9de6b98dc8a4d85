"""Which refusals are told, and for how long."""

import pytest

from specd.alerts.finding import Verdict
from specd.target.attempts import Attempts
from specd.target.outcome import Last

THEN = 1764430000.0
REFUSED = Last(THEN, ok=False, text="why")


def told(attempts: Attempts, after: float) -> bool:
    (found,) = attempts.findings(THEN + after)
    return found.verdict is Verdict.BREACHED


def test_what_nobody_heard_is_told_until_another_attempt_ends() -> None:
    attempts = Attempts()
    assert not told(attempts, 0)
    attempts.ended("refused", REFUSED)
    assert not told(attempts, 0)
    attempts.unheard(REFUSED)
    assert told(attempts, 0)
    attempts.ended("refused", REFUSED)
    assert told(attempts, 1e6)
    attempts.ended("unchanged", Last(THEN, ok=True, text="it is what is served already"))
    assert not told(attempts, 0)


@pytest.mark.parametrize(("after", "is_told"), [(0, True), (3599, True), (3600, False)])
def test_what_the_canary_rules_out_is_told_for_an_hour(after: float, is_told: bool) -> None:
    attempts = Attempts()
    attempts.ended("ruled_out", REFUSED)
    assert told(attempts, after) is is_told


def test_all_endings_are_counted_from_the_start() -> None:
    attempts = Attempts()
    attempts.ended("refused", REFUSED)
    (family,) = attempts.collect()
    counts = {sample.labels["outcome"]: sample.value for sample in family.samples}
    assert counts == {"changed": 0, "unchanged": 0, "refused": 1, "ruled_out": 0}
