"""What a fleet comes to: who has taken an update, whose word is old, and that nobody can say too much."""

import json

import pytest

from specd.fleet.fleet import MOST_NODES
from specd.fleet.overview import complete, overview
from specd.fleet.screen import ago
from tests.daemon.fleet_rig import ALERT, NOW, STATE, Made, target


def seen(made: Made, wanted: str | None = None) -> dict:
    return overview(made.fleet, made.now, wanted)


def by_node(made: Made, what: str, wanted: str | None = None) -> dict:
    return {node["node"]: node[what] for node in seen(made, wanted)["nodes"]}


def test_who_has_not_taken_an_update_is_marked():
    """Test that the newest update is what counts, that a node which started with its revision has it too, and that
    models of another name are not compared.
    """
    made = Made()
    made.node("a", target("t2", "update", NOW - 60))
    made.node("b", target("t3", "update", NOW - 10))
    made.node("c", target("t3"))
    made.node("d", target("t1"))
    made.node("e", target("t1", name="other"))
    assert by_node(made, "taken") == {"a": False, "b": True, "c": True, "d": False, "e": None}
    assert seen(made)["updates"] == [
        {"model": "demo", "revision": "t3", "unix_time": NOW - 10, "node": "b", "online": 4, "taken": 2}
    ]
    assert not complete(seen(made))


def test_a_rollback_is_no_update():
    """Test that a node that went back is behind those that were updated, and makes nobody else so; and that without
    any update that stands nobody is behind, while the revisions are counted.
    """
    made = Made()
    made.node("a", target("t1", "rollback", NOW))
    made.node("b", target("t2", "update", NOW - 60))
    assert by_node(made, "taken") == {"a": False, "b": True}
    made.node("b", target("t2"))
    assert by_node(made, "taken") == {"a": None, "b": None}
    assert [(one["revision"], one["nodes"]) for one in seen(made)["revisions"]] == [("t1", 1), ("t2", 1)]


def test_a_revision_that_is_asked_for_is_what_counts():
    """Test that whoever names a revision is told who serves another one, whatever the nodes say of updates."""
    made = Made()
    made.node("a", target("t2", "update"))
    made.node("b", target("t1"))
    assert by_node(made, "taken", "t1") == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("state", "is_complete"),
    [
        ({}, True),
        ({"doing": "update to /models/next"}, False),
        ({"ready": False, "unready_because": "the model is loading"}, False),
    ],
)
def test_a_fleet_is_complete_once_all_serve_and_nothing_is_under_way(state, is_complete):
    """Test that whoever waits is not told of the end while a node loads; one that is away is not waited for."""
    made = Made()
    made.node("a", target("t1"), **state)
    made.node("gone", target("t0"), online=False)
    assert complete(seen(made)) is is_complete
    assert not complete(seen(Made()))


def test_a_word_is_old_by_its_age():
    """Test that what is retained is as old as it says, that what we hear is new whatever its clock says, and that a
    node is stale once it has missed its time twice while it is there.
    """
    made = Made()
    made.node("heard", target(), time=5.0)
    made.say("old", "availability", b"online")
    made.say("old", "state", STATE | {"time": NOW - 700}, old=True)
    made.say("future", "state", STATE | {"time": NOW + 700}, old=True)
    made.say("away", "availability", b"offline")
    made.say("away", "state", STATE | {"time": NOW - 7000}, old=True)
    assert by_node(made, "told_at") == {"heard": NOW, "old": NOW - 700, "future": NOW, "away": NOW - 7000}
    assert by_node(made, "stale") == {"heard": False, "old": True, "future": False, "away": False}
    assert by_node(made, "standing") == {
        "heard": "serving",
        "old": "serving",
        "future": "unknown",
        "away": "offline",
    }


def test_a_node_that_is_taken_out_of_the_broker_is_gone():
    """Test that an empty availability, as clearing a retained topic sends it, forgets the node."""
    made = Made()
    made.node("a", target())
    made.say("a", "availability", b"")
    assert seen(made)["nodes"] == []


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"{", "its state cannot be read: "),
        (b"\xff\xfe", "its state cannot be read: "),
        (b"[]", "its state cannot be read: "),
        (b"[" * 5000, "its state cannot be read: "),
        (b'{"k": "many"}', "its state cannot be read: "),
        (b'{"acceptance": {"chat": 7}}', "its state cannot be read: "),
        (b'{"time": 1e300}', "its state cannot be read: "),
        (b'{"a": "' + b"x" * 20_000 + b'"}', "it has more than 16384 bytes"),
    ],
)
def test_a_payload_that_is_none_of_ours_is_told_of(payload, why):
    """Test that whatever comes there is a line about its node, and the others are shown as before."""
    made = Made()
    made.node("a", target())
    made.node("b", target())
    made.say("b", "state", payload)
    a, b = seen(made)["nodes"]
    assert (a["faults"], a["k"]) == ([], 3.2)
    assert why in b["faults"][0]
    assert (b["standing"], b["k"], b["target_revision"]) == ("unknown", None, "t1")
    json.dumps(b)


def test_what_is_kept_has_an_end():
    """Test that nodes, their names, classes, alerts and texts are bounded, and that nodes left out are told of."""
    made = Made()
    for number in range(MOST_NODES + 50):
        made.node(f"n{number:04}", target())
    assert (len(seen(made)["nodes"]), seen(made)["crowded"]) == (MOST_NODES, True)
    made = Made()
    made.node("x" * 100, target())
    assert (seen(made)["nodes"], seen(made)["crowded"]) == ([], True)
    many = {f"c{number}": 0.5 for number in range(500)}
    long = ALERT | {"summary": "s" * 3000}
    made.node("a", target("r" * 3000), acceptance=many, firing=[long] + [{}] * 40)
    (node,) = seen(made)["nodes"]
    assert (len(node["acceptance"]), len(node["firing"]), len(node["firing"][0]["summary"])) == (32, 32, 300)
    assert len(node["target_revision"]) == 300


def test_nothing_that_is_told_can_leave_its_place_on_a_screen():
    """Test that control characters, escapes of terminals and marks that turn the direction of writing are gone."""
    made = Made()
    evil = "a\x1b[2J\nb\u202ec\u2028\x9b"
    made.node(evil, target(evil), acceptance={evil: 0.5}, firing=[ALERT | {"summary": evil}])
    text = json.dumps(seen(made), ensure_ascii=False)
    assert text.isprintable()
    assert "a [2J b c" in text


def test_other_topics_are_passed_over():
    """Test that neither commands nor alerts, nor what lies deeper or elsewhere, make a node."""
    made = Made()
    for topic in ("specd/a/alerts", "specd/a/cmd/reload", "specd/all/state", "specd/a/b/state", "x/a/state"):
        made.fleet.take(topic, b"{}", old=False)
    assert seen(made)["nodes"] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (9e5, "10 d"), (-5, "0 s")],
)
def test_ages_are_in_the_largest_unit(seconds, text):
    """Test the words for how long ago something was told."""
    assert ago(NOW, NOW + seconds) == text
