"""What is suspected when acceptance changes."""

from specd.alerts.events import Events

NOON = 1764417600.0  # 2025-11-29 12:00:00Z


def events(*noted):
    found = Events()
    for kind, at in noted:
        found.note(kind, "a to b", NOON + at)
    return found


def test_the_last_event_before_a_change_is_suspected():
    """Not the first, and not one that came after it."""
    found = events(("target_update", -600.0), ("config_reload", -30.0), ("engine_restart", 300.0))
    assert found.suspect(NOON) == "config reload at 2025-11-29 11:59:30Z (a to b)"


def test_when_a_change_began_is_known_to_a_minute():
    """An update that comes a little after the estimate is still the suspect."""
    assert events(("target_update", 59.0)).suspect(NOON).startswith("target update at 2025-11-29 12:00:59Z")
    assert events(("target_update", 61.0)).suspect(NOON).startswith("no event")


def test_nothing_is_suspected_of_what_began_long_after_it():
    """An hour later it is no event's doing, and that is said."""
    found = events(("target_update", -3601.0))
    assert found.suspect(NOON) == "no event in the hour before 2025-11-29 12:00:00Z"


def test_only_so_many_are_remembered():
    """A daemon that lives for years keeps the last ones; the last of a kind can be asked for."""
    found = events(("target_update", 0.0), *[("config_reload", float(n)) for n in range(1, 100)])
    assert len(found.all()) == 64
    assert found.last("config_reload").at == NOON + 99
    assert found.last("target_update") is None
