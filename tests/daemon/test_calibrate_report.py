"""What `specd calibrate` says of what it found."""

import pytest

from policies.cost import StepCosts
from policies.profile import Point, Subject, concluded
from specd.calibrate.report import summary

SUBJECT = Subject("a processor", 2, 2, "abc", ("ngram",), "bfloat16", "none")


def said(*gains: tuple[int, float], p99: float = 0.012) -> str:
    """Of drafts of 4 tokens that bring so many times as many tokens."""
    points = [
        Point(running, k, 100, running * (gain if k else 1.0), 0.01, p99)
        for running, gain in gains
        for k in (0, 4)
    ]
    return summary(concluded(SUBJECT, StepCosts(), points, [], made="2026-01-01", mix="chat", margin=0.1))


@pytest.mark.parametrize(
    ("gains", "sentences"),
    [
        (
            [(4, 1.2), (16, 1.0), (48, 0.5)],
            [
                "With more than 16 running, drafts cost more than they bring.",
                "in [policy.load]: table = [[8, 4]], off_above = 8, resume_at = 5",
            ],
        ),
        ([(1, 2.0), (8, 1.5)], ["No load was found at which drafts cost more than they bring.", "no cap"]),
        ([(1, 0.5)], ["With more than 0 running,", "table = [[1, 0]], off_above = 0, resume_at = 0"]),
    ],
)
def test_the_summary_says_where_drafts_end_and_how_to_write_it(
    gains: list[tuple[int, float]], sentences: list[str]
) -> None:
    text = said(*gains)
    assert all(sentence in text for sentence in sentences)


def test_a_machine_that_was_shared_is_told_of() -> None:
    """Test that plain steps which scatter widely make the numbers doubtful, and steady ones do not."""
    assert "Something else used the machine (some steps of 1 texts" in said((1, 2.0), p99=0.05)
    assert "Something else" not in said((1, 2.0), p99=0.03)
