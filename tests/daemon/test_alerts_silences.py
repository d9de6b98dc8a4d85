"""Of which alerts nobody is told, and for how long."""

import pytest

from specd.alerts.silences import Silences, new_silence, parse_duration, parse_matchers
from specd.errors import UserError

LABELS = {"alertname": "SpecdAcceptanceDrift", "class": "chat", "severity": "warning"}


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        ("SpecdAcceptanceDrift", True),
        ("SpecdAcceptanceLoop", False),
        ("class=chat", True),
        ("class=cha", False),
        ('class="chat"', True),
        ("severity=warning,class!=code", True),
        ("class=~ch.*", True),
        ("class=~ha", False),
        ("class=chat,severity!~crit.*", True),
        ("class=chat,severity=critical", False),
        ("class=chat,tenant=", True),
        ("class=chat,tenant!=", False),
    ],
)
def test_all_matchers_must_hold(text, covers):
    """A bare word is an alert's name, an expression matches the whole value, an absent label is empty."""
    silence = new_silence([text], 60.0, 1000.0)
    assert silence.covers(LABELS, 1000.0) is covers


@pytest.mark.parametrize(
    ("matchers", "seconds", "message"),
    [
        ([], 60.0, "a silence needs a matcher"),
        (["class!=chat"], 60.0, "class!=chat matches every alert that lacks these labels"),
        (["class=~.*"], 60.0, "matches every alert"),
        (["class=~("], 60.0, "'\\(' is no regular expression"),
        (["a-b=c"], 60.0, "'a-b=c' is no matcher: write label=value"),
        (["class=chat"], 0.0, "lasts longer than 0 s"),
        (["class=chat"], float("inf"), "lasts longer than 0 s"),
    ],
)
def test_a_silence_that_would_silence_all_or_nothing_is_refused(matchers, seconds, message):
    """With a sentence that says what to write instead."""
    with pytest.raises(UserError, match=message):
        new_silence(matchers, seconds, 0.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5d", 129600), ("1w", 604800)],
)
def test_times_are_written_with_their_unit(text, seconds):
    """Several units add up."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "2h!", "-2h"])
def test_what_is_no_time_is_refused(text):
    """A number alone could be anything."""
    with pytest.raises(UserError, match="is no time: write it as 90s"):
        parse_duration(text)


def test_the_matchers_are_written_as_they_are_read():
    """So that what is listed can be typed again."""
    text = "alertname=SpecdAcceptanceDrift,class=~a|b,severity!=info,tenant!~x.*"
    found = parse_matchers(text)
    assert ",".join(map(str, found)) == text


def test_a_silence_ends_to_the_second_and_is_remembered_for_a_day():
    """In force from its start, not at its end; of several, the one that ends last tells until when."""
    silences = Silences()
    short, long = new_silence(["class=chat"], 60.0, 1000.0), new_silence(["class=chat"], 90.0, 1000.0)
    silences.add(short)
    silences.add(long)
    assert silences.covering(LABELS, 999.0) is None
    assert silences.covering(LABELS, 1000.0) is long
    assert silences.covering(LABELS, 1089.9) is long
    assert silences.covering(LABELS, 1090.0) is None
    assert [one.state(1060.0) for one in silences.all()] == ["expired", "active"]
    assert silences.forget(1060.0 + 86400.0) == []
    assert silences.forget(1061.0 + 86400.0) == [short.id]
    assert silences.all() == [long]


def test_there_are_only_so_many():
    """Whoever scripts a silence a second is told so."""
    silences = Silences()
    for _ in range(1000):
        silences.add(new_silence(["class=chat"], 60.0, 0.0))
    with pytest.raises(UserError, match="there are 1000 silences"):
        silences.add(new_silence(["class=chat"], 60.0, 0.0))
