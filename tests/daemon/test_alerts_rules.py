"""What the rules say of the evidence."""

import pytest
from pydantic import ValidationError

from engine.api import Round
from specd.alerts.finding import Pair, Verdict
from specd.alerts.rules import Counts, Evidence, Stratum, evaluate, watching
from specd.config.alerts import AlertsSection, RuleSection

PAIR = Pair("t1", "d1")
CHAT = Stratum("chat", "ngram")


def a_rule(**keys):
    return RuleSection(**{"below": 0.5, "window_seconds": 10.0, "min_examined": 4, **keys})


def rounds(accepted, *, count=1, traffic_class="chat", drafted=4, proposer="ngram"):
    """Rounds that kept `accepted` tokens of `drafted`."""
    examined = min(accepted + 1, drafted)
    return [
        Round("r", traffic_class, proposer, drafted, drafted, examined, accepted, "acceptance", "")
    ] * count


def floor(finding):
    """As the summary names it."""
    return finding.annotations["summary"].rpartition(" ")[2]


def verdicts(rules, evidence, now):
    return [(one.labels["class"], one.verdict) for one in evaluate(rules, evidence, PAIR, now)]


def test_only_the_first_position_counts():
    """Three tokens kept are one examined and accepted first position, as one token kept is."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(3) + rounds(1) + rounds(0), now=0.0)
    assert evidence.counts(CHAT, 10.0, 0.0) == Counts(examined=3, accepted=2)


def test_rounds_that_drafted_nothing_are_no_evidence():
    """With drafting off, the class is not even known; with it gone off, the evidence stays what it was."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(0, drafted=0, count=100), now=0.0)
    assert evidence.strata() == []
    evidence.observe(rounds(0, count=4), now=1.0)
    evidence.observe(rounds(0, drafted=0, count=100), now=2.0)
    assert evidence.counts(CHAT, 10.0, 2.0) == Counts(examined=4, accepted=0)


def test_tokens_that_a_grammar_forces_are_no_evidence():
    """They are kept whatever the draft is worth: counted, they would hide that it has become worthless."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(4, count=100, proposer="grammar"), now=0.0)
    assert evidence.strata() == []
    evidence.observe(rounds(0, count=4) + rounds(4, count=100, proposer="grammar"), now=1.0)
    assert evidence.counts(CHAT, 10.0, 1.0) == Counts(examined=4, accepted=0)


def test_evidence_leaves_with_the_window():
    """What is older than the window is not counted, and what no window can reach is not kept."""
    evidence = Evidence(10.0)
    for second in range(100):
        evidence.observe(rounds(1), now=float(second))
    assert evidence.counts(CHAT, 5.0, 99.0) == Counts(examined=5, accepted=5)
    assert evidence.counts(CHAT, 1000.0, 99.0).examined == 10
    assert evidence.counts(CHAT, 5.0, 200.0).examined == 0


def test_without_a_rule_nothing_is_kept_and_nothing_fails():
    """`rules = []` watches nothing, whatever the engine does."""
    evidence = Evidence(0.0)
    for second in range(9):
        evidence.observe(rounds(1), now=float(second))
    assert len(evidence._slots[CHAT]) == 1


def test_a_clock_that_jumps_back_loses_no_evidence_for_good():
    """Rounds of before the jump are not counted again, those after it are."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(1, count=3), now=1000.0)
    evidence.observe(rounds(0, count=2), now=500.0)
    assert evidence.counts(CHAT, 10.0, 500.0) == Counts(examined=2, accepted=0)


@pytest.mark.parametrize(
    ("bad", "good", "verdict"),
    [
        (3, 0, Verdict.NO_EVIDENCE),
        (4, 0, Verdict.BREACHED),
        (3, 2, Verdict.BREACHED),
        (2, 2, Verdict.BETWEEN),
        (9, 11, Verdict.FINE),
        (0, 9, Verdict.FINE),
    ],
)
def test_under_the_floor_is_a_breach_and_a_tenth_over_it_is_fine(bad, good, verdict):
    """The floor is 0.5; on it acceptance wavers, and nothing is said of fewer than four examined drafts."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(0, count=bad) + rounds(1, count=good), now=0.0)
    assert verdicts([a_rule()], evidence, 0.0) == [("chat", verdict)]


def test_classes_are_judged_apart():
    """A good class does not hide a bad one, and a class with too little evidence is neither."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(0, count=9, traffic_class="code") + rounds(3, count=99), now=0.0)
    evidence.observe(rounds(0, count=3, traffic_class="math"), now=0.0)
    rules = [a_rule(), a_rule(traffic_class="math")]
    assert sorted(verdicts(rules, evidence, 0.0), key=str) == [
        ("chat", Verdict.FINE),
        ("code", Verdict.BREACHED),
        ("math", Verdict.NO_EVIDENCE),
    ]


def test_proposers_of_a_class_are_judged_apart():
    """A good one does not hide that another is ruined, nor does a policy that turns to a worse one look like drift."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(3, count=99) + rounds(0, count=9, proposer="eagle"), now=0.0)
    findings = evaluate([a_rule()], evidence, PAIR, 0.0)
    assert [(one.labels["class"], one.labels["proposer"], one.verdict) for one in findings] == [
        ("chat", "ngram", Verdict.FINE),
        ("chat", "eagle", Verdict.BREACHED),
    ]
    assert "drafted by eagle" in findings[1].annotations["summary"]


def test_a_rule_for_a_class_takes_it_out_of_the_star_of_the_same_severity():
    """So no two findings share their labels, and each class has one floor per severity."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(0, count=9, traffic_class="code") + rounds(0, count=9), now=0.0)
    star, code = a_rule(below=0.2), a_rule(below=0.6, traffic_class="code")
    critical = a_rule(below=0.1, severity="critical")
    findings = evaluate([star, code, critical], evidence, PAIR, 0.0)
    assert [
        (one.labels["class"], float(floor(one))) for one in findings if one.labels["severity"] != "critical"
    ] == [
        ("chat", 0.2),
        ("code", 0.6),
    ]
    assert len({tuple(one.labels.items()) for one in findings}) == len(findings) == 4
    assert all(f"{watching([star, code, critical], one.labels).below:g}" == floor(one) for one in findings)


def test_two_rules_for_the_same_class_and_severity_are_refused_by_the_config():
    """They would contradict each other about one alert."""
    with pytest.raises(ValidationError, match='two rules SpecdAcceptanceCollapse watch class "\\*"'):
        AlertsSection(rules=(a_rule(below=0.2), a_rule(below=0.3)))


def test_the_annotations_carry_the_numbers():
    """Acceptance, floor, counts, window and the pair are all there to be read in a pager message."""
    evidence = Evidence(10.0)
    evidence.observe(rounds(0, count=7) + rounds(2), now=0.0)
    [finding] = evaluate([a_rule()], evidence, PAIR, 0.0)
    texts = finding.annotations
    assert texts["summary"] == "Acceptance of class chat, drafted by ngram, is 0.12, under the floor of 0.5"
    for part in ("1 of 8", "10 s", "chat", "target t1", "draft d1", "floor is 0.5"):
        assert part in texts["description"]
