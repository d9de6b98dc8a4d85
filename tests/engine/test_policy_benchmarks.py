"""The measuring programs of `make bench` measure what they say: same work, constant load, and learning kept apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bar import Bar
from benchmarks.contenders import Ours
from benchmarks.day import Day, Phase
from benchmarks.day import _run as run_day
from benchmarks.drafts_page import PLAIN as NO_DRAFT
from benchmarks.drafts_page import Shape, StepTime
from benchmarks.journal import Journal
from benchmarks.policies_page import PolicyFigures
from benchmarks.regret import Plan, Point, Regret
from benchmarks.rivals import ADAPTIVE, DRAFTED, PLAIN, STATIC, Rivals, static
from benchmarks.steady import Ask, Shown, started, undisturbed
from engine.api import PhaseSeconds
from specd.config.policy import PolicySection
from tests.engine.conftest import MakeEngine

ASKS = [Ask([5, 6, 7, 8] * 3 + [9 + i], "copy", 0.0) for i in range(3)]


def test_what_is_measured_is_what_a_daemon_has_by_default(make_engine: MakeEngine) -> None:
    """Test that the adaptive policy, and the engine beside `generate`, are under the default of the config."""
    default = PolicySection().settings()
    assert default == DRAFTED
    ours = Ours.__new__(Ours)
    ours.engine = make_engine("ngram")
    ours._draft = ours.engine._draft_settings
    ours.plain()
    ours.adaptive()
    assert ours.engine.policy._settings == default


def test_a_step_is_told_by_its_medians() -> None:
    """Test that one slow step changes nothing, and that shapes are named as they are drafted."""
    phases = [PhaseSeconds(schedule=0.001, draft=0.002, verify=v, commit=0.001) for v in (0.01, 0.5, 0.012)]
    assert StepTime.of(phases) == pytest.approx((2.0, 12.0, 16.0))
    named = [NO_DRAFT, Shape(4), Shape(4, 16)]
    assert [shape.name for shape in named] == ["none", "chain of 4", "tree of 4 levels, 16 tokens"]


def test_as_many_decode_in_the_last_step_as_in_the_first(make_engine: MakeEngine) -> None:
    """Test that each policy is shown over as many rounds as three running requests need, and leaves nothing behind."""
    rivals = Rivals(make_engine("ngram"))
    for name in (PLAIN, static(3), ADAPTIVE):
        shown = rivals.shown((name,), ASKS, 3, 8)[name]
        rounds = sum(shown.lengths.values())
        assert 24 <= shown.tokens < 24 + 3 * 9
        assert rounds % 3 == 0, "one of the three was missing in some step"
        assert not rivals.engine.has_work
        if name == PLAIN:
            assert shown.lengths == {0: 24}


def test_the_adaptive_policy_learns_from_its_own_rounds_alone(make_engine: MakeEngine) -> None:
    """Test that what a static k shows is unknown to the adaptive policy, and the other way round."""
    rivals = Rivals(make_engine("ngram"))
    rivals.shown((static(4),), ASKS, 3, 8)
    assert rivals.policy(ADAPTIVE).class_acceptance() == []
    assert [each.traffic_class for each in rivals.policy(static(2)).class_acceptance()]


def test_policies_take_turns_with_the_same_requests(make_engine: MakeEngine) -> None:
    """Test that each has requests of its own and as many tokens, and leaves nothing behind."""
    rivals = Rivals(make_engine("ngram"))
    names = (PLAIN, static(3), ADAPTIVE)
    shown = rivals.shown(names, ASKS, 3, 12)
    for name in names:
        assert 36 <= shown[name].tokens < 36 + 3 * 9
        assert sum(shown[name].lengths.values()) % 3 == 0, "one of the three was missing in some step"
    assert shown[PLAIN].lengths == {0: 36}
    assert set(shown[static(3)].lengths) <= {0, 1, 2, 3}
    assert not rivals.engine.has_work


def test_requests_that_wait_for_their_turn_go_on_where_they_were(make_engine: MakeEngine) -> None:
    """Test that texts are the same whoever has turns between their steps."""
    rivals = Rivals(make_engine("ngram"))

    def texts() -> Iterator[list[list[int]]]:
        with started(rivals.engine, ASKS, 12):
            for _ in range(12):
                rivals.engine.step()
                yield [list(sequence.tokens) for sequence in rivals.engine.scheduler.running]

    *_, alone = (found for _, found in rivals.in_turns({PLAIN: texts()}))
    works = {PLAIN: texts(), ADAPTIVE: texts(), static(3): texts()}
    beside = dict(rivals.in_turns(works))
    for name in works:
        for ours, plain in zip(beside[name], alone, strict=True):
            both = min(len(ours), len(plain))
            assert both > len(ASKS[0].prompt) + 8
            assert ours[:both] == plain[:both]


def test_a_step_that_the_machine_was_elsewhere_in_counts_as_a_usual_one() -> None:
    """Test that one late step in five is put right, and that long drafts stay as dear as they are."""
    steps = [Shown(1, seconds, {k: 1}) for seconds, k in ((1.0, 0), (1.2, 2), (2.9, 8), (9.0, 2), (1.1, 0))]
    assert [step.seconds for step in undisturbed(steps)] == [1.0, 1.2, 2.9, 1.2, 1.1]
    assert [step.lengths for step in undisturbed(steps)] == [step.lengths for step in steps]


def test_the_best_in_the_screening_meet_the_adaptive_policy(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Test that every static k is tried, and the final is of two of them, no drafts and the adaptive policy."""
    plan = Plan((2,), ("copy",), 1, 8, {})
    with Bar(plan.total, Journal(tmp_path / "part.jsonl", {}, resume=False)) as bar:
        (point,) = Regret(Rivals(make_engine("ngram")), {"copy": ASKS}, plan, bar).measure()
    assert set(point.screened) == set(STATIC)
    assert {PLAIN, ADAPTIVE, point.best} <= set(point.shown)
    assert len(point.shown) <= 4
    best = max(point.screened, key=lambda name: point.screened[name].rate)
    assert best in point.shown
    assert point.shown[PLAIN].tokens == 2 * 12


def test_a_day_answers_every_request(make_engine: MakeEngine) -> None:
    """Test that clients ask again when they are answered, and that the phases' times are told of each policy."""
    rivals = Rivals(make_engine("ngram"))
    seconds = run_day(rivals, (PLAIN, ADAPTIVE), [Phase(1, 0.0, ASKS), Phase(2, 1.0, ASKS)], 4)
    assert set(seconds) == {PLAIN, ADAPTIVE}
    for phases in seconds.values():
        assert len(phases) == 2
        assert min(phases) > 0
    assert not rivals.engine.has_work


def test_a_journal_goes_on_where_a_killed_run_stopped(tmp_path: Path) -> None:
    """Test that what is known is not measured again, half a line is dropped, and other options are refused."""
    file, asked = tmp_path / "part.jsonl", {"repeats": 3}
    Journal(file, asked, resume=False).measured("one", lambda: 1.5)
    with file.open("a") as torn:
        torn.write('["two", {"a"')
    again = Journal(file, asked, resume=True)
    assert again.measured("one", lambda: pytest.fail("it is known")) == 1.5
    assert again.measured("two", lambda: 2) == 2
    with pytest.raises(ValueError, match="begun with other options"):
        Journal(file, {"repeats": 5}, resume=True)
    again.finish()
    assert not file.exists()


def test_claims_are_against_the_best_static_policy() -> None:
    """Test that it is the best of the final, at its rate in the same turns."""
    screened = {name: Shown(100, 1.0, {}) for name in STATIC} | {static(5): Shown(180, 1.0, {})}
    rates = {PLAIN: 100, static(4): 120, static(5): 110, ADAPTIVE: 132}
    shown = {name: Shown(rate, 1.0, {3: 10}) for name, rate in rates.items()}
    point = Point("mixed", 4, screened, shown)
    assert point.best == static(4)
    assert point.against(static(4)) == pytest.approx(1.1)
    assert point.against(PLAIN) == pytest.approx(1.32)
    day = Day(
        [1, 2],
        {PLAIN: 20.0, static(2): 18.0},
        {PLAIN: [[10.0, 10.0]], static(2): [[9.0, 8.0]], ADAPTIVE: [[8.0, 8.0]]},
    )
    claims = {claim.what: claim for claim in PolicyFigures(points=[point], day=day).claims()}
    many_wants = claims["mixed, 4 running: tokens/s over the best static (k = 4)"]
    assert (many_wants.bound, many_wants.met) == (1.05, True)
    assert not claims["seconds of a day, over the best static (k = 2)"].met
    assert claims["seconds of a day, over k = 0"].met
