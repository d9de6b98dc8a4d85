"""Counters of engines that are only looked at: what of them is evidence, and what detectors make of it."""

from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest

from policies.drift import DriftSettings, Shown, Stratum, Watch
from policies.drift.base import POSITIONS as POSITIONS_WATCHED
from policies.drift.streams import Streams
from policies.observed import Answer, Counters, Gathering, Look, Manner, Noise, Report, compare, interval
from policies.observed.gather import POSITIONS

NOTHING = Counters(drafts=0, drafted=0, accepted=0, kept=(0, 0, 0), generated=0, requests=0, running=0)


def counted(rounds: int, kept: tuple[float, ...], *, k: int = 3, **values: float) -> Counters:
    """As an engine counts whose drafts all have k tokens."""
    found = Counters(
        drafts=rounds,
        drafted=rounds * k,
        accepted=sum(kept),
        kept=kept,
        generated=rounds + sum(kept),
        requests=1,
        running=0,
    )
    return replace(found, **values)


def test_what_came_is_the_difference() -> None:
    before, now = counted(10, (6, 4, 1)), counted(30, (16, 9, 4), requests=3)
    found = interval(before, now)
    assert found.look is Look.FINE
    assert found.came is not None
    assert (found.came.drafts, found.came.accepted, found.came.kept) == (20, 18, (10, 5, 3))


def test_the_first_look_is_no_evidence() -> None:
    assert interval(None, counted(10, (6, 4, 1))).look is Look.FIRST


def test_where_nothing_was_drafted_there_is_no_rate() -> None:
    """A share of nothing is not 0: it would look like a collapse."""
    now = counted(10, (6, 4, 1))
    found = interval(now, replace(now, generated=500, requests=9))
    assert (found.look, found.came) == (Look.IDLE, None)


def test_counters_that_went_back_are_a_restart() -> None:
    assert interval(counted(30, (16, 9, 4)), counted(10, (6, 4, 1))).look is Look.RESTARTED


def test_a_restart_shows_although_the_new_process_has_counted_more_already() -> None:
    before, now = counted(10, (6, 4, 1), started=100.0), counted(90, (60, 40, 10), started=200.0)
    assert interval(before, now).look is Look.RESTARTED
    assert interval(before, replace(now, started=100.0)).look is Look.FINE


@pytest.mark.parametrize(
    ("rounds", "kept", "generated", "ended"),
    [
        (100, (0, 0, 0), 40, 1),  # ranks without work step beside the others
        (100, (0, 0, 0), 0, 0),
        (100, (50, 0, 0), 120, 1),  # 150 tokens, of which the end of an answer cuts off 3 at most
    ],
)
def test_rounds_that_no_answer_had_are_no_evidence(
    rounds: int, kept: tuple[float, ...], generated: int, ended: int
) -> None:
    now = counted(rounds, kept, generated=generated, requests=ended)
    assert interval(NOTHING, now).look is Look.PHANTOM


def test_tokens_that_the_end_of_an_answer_cut_off_are_no_phantoms() -> None:
    now = counted(100, (80, 60, 40), generated=100 + 180 - 9, requests=3)
    assert interval(NOTHING, now).look is Look.FINE


def test_more_accepted_than_drafted_is_no_evidence() -> None:
    assert interval(NOTHING, replace(counted(10, (9, 9, 9)), drafted=20)).look is Look.PHANTOM


def rates(came: Counters) -> tuple[float, ...]:
    report = Report.of(came, 0.0)
    assert report is not None
    assert report.measure == POSITIONS
    return tuple(a / n for a, n in zip(report.accepted, report.examined, strict=True))


def test_a_rate_by_position_does_not_fall_when_k_rises() -> None:
    """The share of all drafted tokens does: 0.7 of them at k = 1, a third of it at k = 3."""
    one = counted(1000, (700,), k=1)
    three = counted(1000, (700, 350, 70), k=3)
    assert one.accepted / one.drafted == 0.7
    assert three.accepted / three.drafted < 0.4
    assert rates(one) == (0.7,)
    assert rates(three) == (0.7, 0.5, 0.2)


def test_where_drafts_end_early_only_the_first_position_is_known() -> None:
    """Whether the second was examined where the first was kept hangs on the lengths, which nobody tells."""
    assert rates(replace(counted(1000, (700, 350, 70)), drafted=2400)) == (0.7,)


def test_positions_count_as_far_as_every_draft_went() -> None:
    came = replace(counted(1000, (700, 350, 70)), drafted=2400, offered=(1000, 1000, 400))
    assert rates(came) == (0.7, 0.5)


def test_what_was_examined_is_taken_from_who_counts_it() -> None:
    came = replace(counted(1000, (700, 350, 70)), drafted=2400, examined=(1000, 600, 100))
    assert rates(came) == (0.7, 350 / 600, 0.7)


def test_totals_alone_are_compared_at_the_same_k_alone() -> None:
    def measure(k: int) -> str | None:
        report = Report.of(counted(1000, (), k=3, accepted=900) and replace(counted(1000, ()), k=k), 0.0)
        return None if report is None else report.measure

    assert measure(3) == "3 drafted"
    assert measure(5) == "5 drafted"
    assert measure(0) is None, "without a k there is nothing that it could be compared with"


def test_a_k_that_changed_between_two_looks_is_none() -> None:
    before = replace(NOTHING, kept=(), k=3)
    came = interval(before, replace(counted(100, (), k=5, accepted=200), k=5, generated=300)).came
    assert came is not None
    assert Report.of(came, 0.0) is None


def test_rounds_and_tokens_alone_say_how_much_was_accepted() -> None:
    """Each round adds a token of the target's own, and the first of an answer comes without a round."""
    before = Counters(drafts=0, drafted=nan, accepted=nan, generated=0, requests=0, k=4)
    now = Counters(drafts=100, drafted=nan, accepted=nan, generated=355, requests=5, k=4)
    came = interval(before, now).came
    assert came is not None
    assert (came.drafted, came.accepted) == (400, 250)


def test_a_length_that_reads_0_says_nothing() -> None:
    before = Counters(drafts=nan, drafted=nan, accepted=nan, generated=0, requests=0, k=4)
    now = replace(before, generated=355, requests=5)
    assert interval(before, now).look is Look.IDLE
    came = interval(before, replace(now, length=3.5)).came
    assert came is not None
    assert (came.drafts, came.accepted) == (100, 250)


def reports(gathering: Gathering, intervals: list[Counters]) -> list[Report]:
    made = (gathering.add(came, float(t)) for t, came in enumerate(intervals))
    return [report for report in made if report is not None]


def test_a_report_waits_until_twice_as_many_have_ended_as_ran() -> None:
    came = counted(100, (50, 20, 10), requests=4, running=16)
    found = reports(Gathering(least_requests=4, least_drafts=16), [came] * 8)
    assert [sum(report.examined[:1]) for report in found] == [800]


def test_between_two_reports_as_many_end_as_ran_at_the_end_of_the_first() -> None:
    came = counted(100, (50, 20, 10), requests=4, running=8)
    found = reports(Gathering(least_requests=8, least_drafts=16), [came] * 10)
    assert [report.t for report in found] == [3.0, 9.0], "four intervals, two to wash, and four"


def test_an_engine_that_counts_whole_requests_needs_no_wash() -> None:
    came = counted(300, (150, 60, 30), requests=nan, running=8, whole=True)
    found = reports(Gathering(least_requests=8, least_drafts=256), [came] * 3)
    assert [report.t for report in found] == [0.0, 1.0, 2.0]


class Engine:
    """Counts steps as they come, of requests that last for many looks and of which each has a rate of its own."""

    def __init__(self, seed: int, places: int = 4, rounds: int = 120) -> None:
        self.rng = np.random.default_rng(seed)
        self.rounds = rounds
        self.left = self.rng.geometric(1 / rounds, places)
        self.rate = self._rates(places)
        self.fall = 0.0

    def _rates(self, count: int) -> np.ndarray:
        return self.rng.beta(6, 4, count)

    def look(self, steps: int = 10) -> Counters:
        """After so many steps. A place whose request ends goes on with another one."""
        places = len(self.left)
        of_old = np.minimum(self.left, steps)
        kept = self.rng.binomial(of_old, self._accepted())
        self.left = self.left - of_old
        over = self.left == 0
        self.left = np.where(over, self.rng.geometric(1 / self.rounds, places) + steps, self.left)
        self.rate = np.where(over, self._rates(places), self.rate)
        of_new = steps - of_old
        kept += self.rng.binomial(of_new, self._accepted())
        self.left = self.left - of_new
        return counted(steps * places, (int(kept.sum()),), k=1, requests=int(over.sum()), running=places)

    def _accepted(self) -> np.ndarray:
        return np.clip(self.rate - self.fall, 0.0, 1.0)


SETTINGS = DriftSettings(learn_requests=30, requests_per_false_alarm=1e4, collapse_below=0.05)


def fell(found: list[Report]) -> bool:
    watch = Watch(SETTINGS)
    watch.serve("t1", "d1")
    for report in found:
        watch.observe(
            Shown(
                t=report.t,
                traffic_class="engine",
                temperature=nan,
                target_revision="t1",
                draft_revision="d1",
                proposer=report.measure,
                examined=report.examined,
                accepted=report.accepted,
                tokens=0,
            )
        )
    return watch.breaches > 0


def test_requests_of_all_temperatures_are_a_stratum() -> None:
    shown = Shown(
        t=0.0,
        traffic_class="engine",
        temperature=nan,
        target_revision="t1",
        draft_revision="d1",
        proposer=POSITIONS,
        examined=(9,),
        accepted=(3,),
        tokens=0,
    )
    assert shown.stratum == Stratum("engine", "mixed", POSITIONS)


def alarms_of_every_look(looks: list[list[Counters]]) -> int:
    """How many engines there would be an alarm for, were each look a piece of evidence."""
    streams = Streams(SETTINGS, rows=len(looks))
    rows = np.arange(len(looks))
    rates, examined = np.zeros((2, len(looks), POSITIONS_WATCHED))
    for t, of_all in enumerate(zip(*looks, strict=True)):
        examined[:, 0] = [came.drafts for came in of_all]
        rates[:, 0] = [came.accepted / came.drafts for came in of_all]
        streams.observe(rows, rates, examined.astype(np.int64), np.full(len(looks), float(t)))
    return int(streams.flags.fell.sum())


def test_requests_that_run_through_many_looks_raise_no_alarm() -> None:
    """Every look taken as evidence of its own cries wolf: neighbours are of the same requests."""
    engines = [Engine(seed, rounds=300) for seed in range(8)]
    looks = [[engine.look() for _ in range(1500)] for engine in engines]
    assert alarms_of_every_look(looks) >= 4
    assert not any(fell(reports(Gathering(least_requests=8, least_drafts=256), of_one)) for of_one in looks)


def test_a_fall_shows_in_reports() -> None:
    engine = Engine(1)
    looks = [engine.look() for _ in range(2500)]
    engine.fall = 0.3
    looks += [engine.look() for _ in range(1000)]
    assert fell(reports(Gathering(least_requests=8, least_drafts=256), looks))


def answers(prints: str, manner: Manner = Manner.ALONE) -> list[Answer | None]:
    """A letter for each; - is not answered."""
    return [None if letter == "-" else Answer(letter, manner) for letter in prints]


def test_answers_that_all_differ_are_another_targets() -> None:
    found = compare(answers("a" * 48), answers("b" * 48), {Manner.ALONE: Noise(0, 48)})
    assert found.changed
    assert (found.differed, found.compared) == (48, 48)


def test_without_knowing_how_much_answers_differ_nothing_is_said() -> None:
    found = compare(answers("a" * 48), answers("b" * 48), {})
    assert not found.changed
    assert found.chance == 1.0


def test_as_many_that_differ_as_ever_are_noise() -> None:
    noise = {Manner.ALONE: Noise(60, 192)}
    assert not compare(answers("a" * 48), answers("b" * 16 + "a" * 32), noise).changed


def test_few_that_differ_are_no_other_target_however_seldom_that_is() -> None:
    noise = {Manner.ALONE: Noise(0, 4800)}
    assert not compare(answers("a" * 48), answers("b" * 8 + "a" * 40), noise).changed
    assert compare(answers("a" * 48), answers("b" * 14 + "a" * 34), noise).changed


def test_answers_had_beside_others_are_compared_with_such_alone() -> None:
    """What differs under load says nothing against how little differs without any."""
    noise = {Manner.ALONE: Noise(0, 480)}
    found = compare(answers("a" * 48), answers("b" * 48, Manner.BESIDE), noise)
    assert not found.changed
    assert found.counts[Manner.BESIDE] == Noise(48, 48)
    assert compare(answers("a" * 48), answers("b" * 48, Manner.BESIDE), {Manner.BESIDE: Noise(9, 48)}).changed


def test_what_was_not_answered_is_left_out() -> None:
    found = compare(answers("aaaa----"), answers("ab--bbbb"), {Manner.ALONE: Noise(0, 48)})
    assert (found.differed, found.compared) == (1, 2)


def test_noise_alone_seldom_seems_a_change() -> None:
    rng = np.random.default_rng(0)
    flips = rng.beta(0.3, 2, 48)  # some prompts nearly always differ, most never do
    chances = []
    for _ in range(400):
        first = answers("a" * 48)

        def again() -> list[Answer | None]:
            return answers("".join("ba"[int(u > p)] for u, p in zip(rng.random(48), flips, strict=True)))

        noise = {Manner.ALONE: compare(first, again(), {}).counts[Manner.ALONE]}
        chances.append(compare(first, again(), noise).chance)
    assert not any(isnan(chance) for chance in chances)
    assert np.mean(np.array(chances) <= 0.05) <= 0.1, "twice the smaller of two is what is compared"
