"""Drift: a fall is found, and nothing else is."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from policies.drift import DriftSettings, Kind, Shown, Signal, Verdict, Watch
from policies.drift.base import POSITIONS
from policies.drift.history import KEPT, History
from policies.drift.ranks import Ranks, sizes
from policies.drift.streams import Streams

EASY = DriftSettings(requests_per_false_alarm=1e4)
NOW = 1e6


def requests(
    mean: float, count: int, seed: int = 0, *, name: str = "chat", revision: str = "t1", start: float = 0.0
) -> Iterator[Shown]:
    """One a second; acceptance is each request's own, about 0.08 around the mean, and falls with the position."""
    rng = np.random.default_rng(seed)
    for place in range(count):
        own = rng.beta(mean * 25, (1 - mean) * 25)
        examined, accepted = [int(rng.lognormal(4, 0.5)) + 1], []
        for position in range(5):
            accepted.append(int(rng.binomial(examined[-1], own * 0.95**position)))
            examined.append(accepted[-1])
        yield Shown(
            t=start + place,
            traffic_class=name,
            temperature=0.0,
            target_revision=revision,
            draft_revision="d1",
            proposer="eagle",
            examined=tuple(examined[:-1]),
            accepted=tuple(accepted),
            tokens=examined[0] + sum(accepted),
        )


def watch(*traffic: Iterator[Shown], settings: DriftSettings = EASY) -> Watch:
    found = Watch(settings)
    found.serve("t1", "d1")
    for shown in (each for part in traffic for each in part):
        found.observe(shown)
    return found


def signal(watch: Watch, kind: Kind, now: float, name: str = "chat") -> Signal:
    (found,) = [s for s in watch.signals(now) if s.kind is kind and s.stratum.traffic_class == name]
    return found


def scores(wander: bool) -> np.ndarray:
    """[steps, rows, POSITIONS] of rates that are 0.2 or 0.9 but for chance, of sizes that stay or come and go."""
    rng = np.random.default_rng(1)
    ranks, rows, found = Ranks(400), np.arange(400), []
    for step in range(200):
        low, high = (1, 9) if wander and step % 50 < 25 else (32, 64)
        examined = rng.integers(low, high, size=(400, POSITIONS))
        rates = rng.binomial(examined, rng.choice([0.2, 0.9], (400, POSITIONS))) / examined
        size = sizes(examined)
        found.append(ranks.compare(rows, rates, size, rng.random(rates.shape))[0])
        ranks.add(rows, rates, size, np.ones_like(rates, dtype=bool))
    return np.stack(found)


def test_a_score_is_standard_normal_whatever_the_law_of_the_rates() -> None:
    """Also while the baseline is still learned, and with many ties."""
    z = scores(wander=False)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / z.size)
    one_after_another = (z[1:] * z[:-1]).mean()
    assert abs(one_after_another) < 4 / np.sqrt(z.size)


def test_a_bet_wins_nothing_on_average_while_sizes_come_and_go() -> None:
    """Those included that were hardly seen yet, and are compared with smaller ones."""
    z = scores(wander=True)
    for d in (0.5, 1.0, 2.0):
        won = np.exp(-d * z - d**2 / 2)
        assert won.mean() < 1 + 4 * won.std() / np.sqrt(won.size)


def test_a_ruined_draft_shows_although_its_requests_have_more_rounds_than_any_before() -> None:
    """As texts of one length do: 20 rounds at three tokens each, then nearly 60."""
    good = (
        replace(r, examined=(20,), accepted=(int(20 * min(r.accepted[0] / r.examined[0] + 0.15, 1)),))
        for r in requests(0.75, 300)
    )
    bad = (replace(r, examined=(58,), accepted=(r.accepted[0] % 3,)) for r in requests(0.5, 15, 1, start=300))
    assert signal(watch(good, bad), Kind.STEP, 315).verdict is Verdict.BREACHED


def test_false_alarms_keep_to_the_bound() -> None:
    """That M is at A within n requests with a probability of at most n / A, here 2.5 %, in 600 streams."""
    streams, rows = Streams(DriftSettings(requests_per_false_alarm=6e3), 600, seed=3), np.arange(600)
    rng = np.random.default_rng(2)
    crossed = np.zeros(600, dtype=bool)
    for step in range(150):
        examined = rng.integers(0, 80, size=(600, POSITIONS))
        own = rng.beta(14, 6, size=(600, 1))
        rates = rng.binomial(examined, own) / np.maximum(examined, 1)
        streams.observe(rows, rates, examined, np.full(600, float(step)))
        crossed |= streams.falls.evidence(rows) >= 6e3
    assert crossed.sum() <= 600 * 0.025 + 3 * np.sqrt(600 * 0.025)
    assert crossed.sum() >= 1, "a bound that is never come near to costs power"


def test_a_step_is_found_soon_and_told_with_its_numbers() -> None:
    found = watch(requests(0.75, 400), requests(0.6, 60, 1, start=400))
    step = signal(found, Kind.STEP, 460)
    assert step.verdict is Verdict.BREACHED
    assert step.position == 1
    assert step.before == pytest.approx(0.75, abs=0.03)
    assert step.after == pytest.approx(0.6, abs=0.06)
    assert step.low < -0.15 < step.high < 0
    assert step.since == pytest.approx(400, abs=10)
    assert (step.target_revision, step.draft_revision) == ("t1", "d1")
    assert signal(found, Kind.DECAY, 460).verdict is Verdict.FINE


def test_a_slow_decay_is_found_and_called_one() -> None:
    falling = (replace(next(requests(0.75 - 0.15 * i / 1000, 1, i)), t=500.0 + i) for i in range(1000))
    found = watch(requests(0.75, 500), falling)
    decay = signal(found, Kind.DECAY, 1500)
    assert decay.verdict is Verdict.BREACHED
    assert 0.05 <= decay.before - decay.after < 0.1
    assert decay.since is not None
    assert 200 <= decay.since < 900


def test_another_mix_of_classes_is_no_drift() -> None:
    a, b = requests(0.8, 1200, 3, name="a"), requests(0.5, 1200, 4, name="b")
    rng = np.random.default_rng(5)
    mixed = (next(b if rng.random() < (0.5 if i < 600 else 0.95) else a) for i in range(1200))
    found = watch(mixed)
    assert {s.verdict for s in found.signals(600)} == {Verdict.FINE}


def test_a_request_of_many_tokens_is_one_piece_of_evidence() -> None:
    """One that goes badly for 10,000 tokens raises nothing."""
    bad = replace(next(requests(0.7, 1)), t=300.0, examined=(10_000,), accepted=(0,))
    assert signal(watch(requests(0.7, 300), iter([bad])), Kind.STEP, 301).verdict is Verdict.FINE


def test_little_evidence_says_nothing_and_so_does_old_evidence() -> None:
    young = watch(requests(0.7, 50))
    assert signal(young, Kind.STEP, 50).verdict is Verdict.NO_EVIDENCE
    assert np.isnan(young.scores(50)["chat"])
    assert np.isnan(young.baselines()["chat"])
    quiet = watch(requests(0.7, 300))
    assert signal(quiet, Kind.STEP, 298 + 600).verdict is Verdict.FINE
    assert 0 <= quiet.scores(300)["chat"] < 1
    assert signal(quiet, Kind.STEP, 300 + 700).verdict is Verdict.NO_EVIDENCE
    assert np.isnan(quiet.scores(300 + 700)["chat"])
    assert quiet.baselines()["chat"] == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_clock_that_is_set_hides_no_fall_and_makes_none(jump: float) -> None:
    """Set forward, old evidence is stale until the next request; set back, it is as good as it was."""
    found = watch(requests(0.75, 300))
    verdict = signal(found, Kind.STEP, 300 + jump).verdict
    assert verdict is (Verdict.NO_EVIDENCE if jump > 0 else Verdict.FINE)
    for shown in requests(0.75, 20, 1, start=300 + jump):
        found.observe(shown)
    assert signal(found, Kind.STEP, 320 + jump).verdict is Verdict.FINE
    for shown in requests(0.45, 40, 2, start=320 + jump):
        found.observe(shown)
    assert Verdict.BREACHED in {signal(found, kind, 360 + jump).verdict for kind in (Kind.STEP, Kind.DECAY)}


def test_requests_for_which_nothing_was_drafted_are_no_evidence() -> None:
    none = (replace(each, examined=(), accepted=()) for each in requests(0.7, 1000, start=300))
    assert watch(requests(0.7, 300), none).scores(300) == watch(requests(0.7, 300)).scores(300)


def test_a_fall_is_over_when_acceptance_is_back_and_not_before() -> None:
    found = watch(requests(0.75, 400), requests(0.55, 200, 1, start=400))
    assert signal(found, Kind.STEP, 600).verdict is Verdict.BREACHED
    for shown in requests(0.75, 100, 2, start=600):
        found.observe(shown)
    assert signal(found, Kind.STEP, 700).verdict is Verdict.FINE
    assert found.baselines()["chat"] == pytest.approx(0.75, abs=0.03)


def test_an_update_is_compared_with_the_revision_before_it() -> None:
    found = watch(requests(0.75, 400))
    found.serve("t2", "d1")
    for shown in requests(0.55, 40, 1, revision="t2", start=400):
        found.observe(shown)
    step = signal(found, Kind.STEP, 440)
    assert (step.verdict, step.target_revision) == (Verdict.BREACHED, "t2")


def test_an_update_may_have_its_baseline_learned_anew() -> None:
    found = watch(requests(0.75, 400), settings=replace(EASY, after_update="learn"))
    found.serve("t2", "d1")
    for shown in requests(0.55, 150, 1, revision="t2", start=400):
        found.observe(shown)
    assert signal(found, Kind.STEP, 550).verdict is Verdict.FINE
    assert found.baselines()["chat"] == pytest.approx(0.55, abs=0.03)


def test_a_request_of_the_pair_before_says_nothing_of_this_one() -> None:
    found = watch(requests(0.75, 400))
    found.serve("t2", "d1")
    for shown in requests(0.3, 40, 1, start=400):
        found.observe(shown)
    assert signal(found, Kind.STEP, 440).verdict is Verdict.FINE


def test_an_improvement_is_the_new_baseline() -> None:
    """So that falling back from it is a fall."""
    found = watch(requests(0.5, 400), requests(0.75, 300, 1, start=400))
    assert found.baselines()["chat"] == pytest.approx(0.75, abs=0.03)
    for shown in requests(0.55, 60, 2, start=700):
        found.observe(shown)
    assert signal(found, Kind.STEP, 760).verdict is Verdict.BREACHED


def test_a_level_that_is_accepted_by_hand_is_the_new_baseline() -> None:
    """Of the class that was meant; until it is learned nothing is said, and a fall from it is a fall."""
    found = watch(*(requests(0.8, 300, 1, name=name) for name in ("chat", "code")))
    for name in ("chat", "code"):
        for shown in requests(0.5, 40, 2, name=name, start=300):
            found.observe(shown)
    (accepted,) = found.accept(lambda stratum: stratum.traffic_class == "chat")
    assert (accepted.traffic_class, found.breaches) == ("chat", 1)
    assert signal(found, Kind.STEP, 340).verdict is Verdict.NO_EVIDENCE
    for shown in requests(0.5, 200, 3, start=340):
        found.observe(shown)
    assert signal(found, Kind.STEP, 540).verdict is Verdict.FINE
    assert signal(found, Kind.STEP, 540).before == pytest.approx(0.5, abs=0.03)
    for shown in requests(0.25, 60, 4, start=540):
        found.observe(shown)
    assert Verdict.BREACHED in {signal(found, kind, 600).verdict for kind in (Kind.STEP, Kind.DECAY)}
    assert found.accept(lambda stratum: stratum.proposer == "nobody") == []


def test_a_loop_is_a_rise_to_nearly_all() -> None:
    found = watch(requests(0.7, 400), requests(0.99, 60, 1, start=400))
    loop = signal(found, Kind.LOOP, 460)
    assert loop.verdict is Verdict.BREACHED
    assert (loop.before, loop.after) == (pytest.approx(0.7, abs=0.03), pytest.approx(0.99, abs=0.01))
    assert 0.2 < loop.low < loop.after - loop.before < loop.high < 0.4
    assert loop.since == pytest.approx(400, abs=10)
    assert (loop.requests_before, loop.requests_after) == pytest.approx((400, 60), abs=10)
    for shown in requests(0.7, 60, 2, start=460):
        found.observe(shown)
    assert signal(found, Kind.LOOP, 520).verdict is Verdict.FINE


def test_a_collapse_needs_no_baseline() -> None:
    found = watch(requests(0.02, 110))
    collapse = signal(found, Kind.COLLAPSE, 110)
    assert (collapse.verdict, collapse.requests_before) == (Verdict.BREACHED, 110)
    assert 0 < collapse.now_error < 0.02
    for shown in requests(0.6, 60, 2, start=110):
        found.observe(shown)
    assert signal(found, Kind.COLLAPSE, 170).verdict is Verdict.FINE


def test_a_collapse_is_told_with_what_it_fell_from() -> None:
    """Its numbers are those of the fall that it is, and its beginning is not the moment of the alarm."""
    found = watch(requests(0.7, 400), requests(0.02, 60, 1, start=400))
    collapse, fall = (signal(found, kind, 460) for kind in (Kind.COLLAPSE, Kind.STEP))
    assert (collapse.verdict, fall.verdict) == (Verdict.BREACHED, Verdict.BREACHED)
    assert replace(collapse, kind=Kind.STEP) == fall
    assert collapse.since == pytest.approx(400, abs=10)
    assert -0.9 < collapse.low < collapse.high < -0.3


def test_a_baseline_is_of_all_temperatures_and_of_nobody_else() -> None:
    hot = (replace(each, temperature=1.0) for each in requests(0.5, 300, 1))
    found = watch(requests(0.7, 100), hot, requests(0.9, 99, 2, name="code"))
    known = found.baseline("chat", "eagle")
    assert known is not None
    assert (known.mean, known.requests) == (pytest.approx(0.55, abs=0.02), 400)
    assert found.baseline("code", "eagle") is found.baseline("chat", "ngram") is None


def test_chances_are_judged_apart_from_what_became_of_them() -> None:
    sure = (replace(each, expected=tuple(0.8 * n for n in each.examined)) for each in requests(0.7, 300))
    found = watch(requests(0.7, 300, 9), sure)
    by = {s.stratum.by_chance: s for s in found.signals(300) if s.kind is Kind.STEP}
    assert by[True].before == pytest.approx(0.8)
    assert by[False].before == pytest.approx(0.7, abs=0.02)


def test_all_of_it_outlives_a_restart() -> None:
    """Signals are the same, more strata than there was room for included, and go on alike."""
    classes = [requests(0.7, 150, seed, name=f"c{seed}") for seed in range(20)]
    before = watch(*classes, requests(0.4, 60, 50, name="c3", start=150))
    after = Watch(EASY)
    after.restore(before.saved())
    after.serve("t1", "d1")
    assert repr(after.signals(200)) == repr(before.signals(200))
    assert signal(after, Kind.STEP, 200, "c3").verdict is Verdict.BREACHED
    for shown in requests(0.4, 60, 51, name="c4", start=150):
        after.observe(shown)
    assert signal(after, Kind.STEP, 210, "c4").verdict is Verdict.BREACHED


@pytest.mark.parametrize("saved", [{}, {"version": 0}, {"version": 1, "strata": [[["a"], {}]]}])
def test_a_state_that_is_none_is_refused(saved: dict) -> None:
    with pytest.raises(ValueError, match="it "):
        Watch(EASY).restore(saved)


def test_a_history_keeps_sums_and_order_in_little_room() -> None:
    history, rows = History(1), np.array([0])
    for place in range(5000):
        history.add(rows, np.full((1, POSITIONS), place / 5000), np.ones((1, POSITIONS)), np.array([place]))
    past = history.past(0, 0)
    assert past.requests.sum() == past.weight.sum() == 5000
    assert past.mean @ past.weight == pytest.approx(sum(range(5000)) / 5000)
    assert np.array_equal(past.start, np.concatenate([[0], past.requests.cumsum()[:-1]]))
    assert list(past.requests[-KEPT + 1 :]) == [1] * (KEPT - 1)
    assert len(past.mean) < 100
