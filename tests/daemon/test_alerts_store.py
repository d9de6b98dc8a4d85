"""What outlives the daemon, and what happens where the disk does not let it."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from specd.alerts.bounds import Bounds
from specd.alerts.durable import DurableStore
from specd.alerts.events import Event
from specd.alerts.lifecycle import Alert, OpenAlert, State
from specd.alerts.silences import new_silence
from specd.alerts.store import MEMORY, Changes, Content, Entry, Store

NOW = 1764430000.0


def an_alert(number=1, state=State.FIRING):
    return Alert(
        f"f{number}", "floor", {"alertname": "A", "class": f"c{number}"}, {"summary": "ü"}, state, NOW
    )


def an_entry(number=1, *, lane=None, state=State.FIRING, due=NOW, again=False, grouping=""):
    alert = an_alert(number, state)
    return Entry("ops", lane or alert.fingerprint, grouping, due, Content((alert,)), again)


def some_changes():
    one = OpenAlert(an_alert(), NOW - 60.0, {"since": "x"}, refired=2)
    one.breached.hold(NOW)
    return Changes(
        alerts={"f1": one},
        told={("ops", "f1"): NOW},
        silences={"s": new_silence(["class=chat,severity!~x"], 60.0, NOW)},
        events=(Event("target_update", "t1 to t2", NOW),),
        entries=(an_entry(),),
    )


def taken(store, now=NOW, free=4, lease=10.0):
    """Numbers of the alerts in each message that is due."""
    messages = store.take({"ops": free}, now, lease)
    return messages, [[one.fingerprint for one in message.content.alerts] for message in messages]


def test_what_is_committed_is_there_after_a_restart(tmp_path):
    """Alerts with all that decides how they go on, who was told, silences, events, and the outbox."""
    changes = some_changes()
    store = Store(tmp_path / "a.db")
    store.load(NOW)
    store.commit(changes)
    store.close()
    again = Store(tmp_path / "a.db")
    saved = again.load(NOW)
    assert saved.alerts == list(changes.alerts.values())
    assert saved.told == changes.told
    assert saved.silences == list(changes.silences.values())
    assert saved.events == list(changes.events)
    assert taken(again)[1] == [["f1"]]
    again.commit(Changes(alerts={"f1": None}, told={("ops", "f1"): None}, silences={"s": None}))
    saved = again.load(NOW)
    assert (saved.alerts, saved.told, saved.silences) == ([], {}, [])


def test_a_transaction_is_all_or_nothing():
    """One that fails half-way leaves no alert that nobody will be told of."""
    store = Store()
    broken = Changes(alerts={"f1": OpenAlert(an_alert(), NOW)}, entries=(an_entry(due="soon" * 2), object()))
    with pytest.raises(AttributeError):
        store.commit(broken)
    assert store.load(NOW).alerts == []
    assert store.pending() == {}


def test_of_a_lane_only_the_first_message_is_on_its_way():
    """The second is taken once the first is settled, however long that takes; other lanes do not wait."""
    store = Store()
    store.commit(Changes(entries=(an_entry(1), an_entry(1, state=State.RESOLVED), an_entry(2))))
    messages, alerts = taken(store)
    assert alerts == [["f1"], ["f2"]]
    assert taken(store)[0] == []
    store.remove(messages[0])
    (message,), _ = taken(store)
    assert message.content.alerts[0].state is State.RESOLVED


def test_a_lease_ends():
    """A message whose sender has died is taken again, with the same id, as its second attempt."""
    store = Store()
    store.commit(Changes(entries=(an_entry(),)))
    (first,), _ = taken(store, lease=10.0)
    assert taken(store, now=NOW + 9.9)[0] == []
    (second,), _ = taken(store, now=NOW + 10.0)
    assert (second.id, first.attempt, second.attempt) == (first.id, 1, 2)


def test_after_a_restart_nothing_waits_for_a_lease_or_an_impossible_time():
    """The sender is gone with its process; and a clock that was set back a year keeps nothing back for a year."""
    store = Store()
    store.commit(Changes(entries=(an_entry(1), an_entry(2, due=NOW + 3e7))))
    taken(store, lease=1e9)
    store.load(NOW)
    (message,), alerts = taken(store)
    assert alerts == [["f1"]]
    store.remove(message)
    assert taken(store, now=NOW + 3600.0)[1] == [["f2"]]


def test_messages_are_taken_when_they_are_due_and_as_many_as_there_is_room_for():
    """The soonest first; `due` tells when to look again."""
    store = Store()
    store.commit(Changes(entries=tuple(an_entry(number, due=NOW - number) for number in range(5))))
    assert taken(store, free=2)[1] == [["f4"], ["f3"]]
    store.commit(Changes(entries=(an_entry(9, due=NOW + 7.0),)))
    assert store.due() == {"ops": NOW - 2.0}
    assert taken(store)[1] == [["f2"], ["f1"], ["f0"]]
    assert store.due() == {"ops": NOW + 7.0}


def test_where_too_much_waits_what_is_over_and_unheard_goes_first():
    """Then the oldest; what is being sent stays, and an alert whose beginning was heard keeps its end."""
    store = Store(bounds=Bounds(messages=10))
    store.commit(Changes(entries=tuple(an_entry(number) for number in range(3))))
    (sent, *_), _ = taken(store, free=1)
    store.commit(Changes(entries=(an_entry(7), an_entry(7, state=State.RESOLVED))))
    store.commit(Changes(entries=(an_entry(8, state=State.RESOLVED),)))
    assert store.commit(Changes(entries=tuple(an_entry(number) for number in range(20, 24)))) == {}
    assert store.commit(Changes(entries=(an_entry(30),))) == {"ops": 2}
    assert store.commit(Changes(entries=(an_entry(31),))) == {}
    assert store.commit(Changes(entries=(an_entry(32),))) == {"ops": 2}
    store.retry(sent, NOW)
    assert sorted(taken(store, free=99)[1]) == sorted(
        [[f"f{number}"] for number in (0, 8, 20, 21, 22, 23, 30, 31, 32)]
    )


def test_what_waits_has_a_size():
    """However few messages it is."""
    store = Store(bounds=Bounds(bytes=2000))
    dropped = [store.commit(Changes(entries=(an_entry(number),))) for number in range(50)]
    assert sum(one.get("ops", 0) for one in dropped) == 50 - store.pending()["ops"]
    assert 5 <= store.pending()["ops"] <= 15


def test_only_so_many_events_are_kept():
    """A daemon that lives for years keeps the last ones."""
    store = Store()
    for number in range(100):
        store.commit(Changes(events=(Event("config_reload", str(number), NOW),)))
    assert [event.text for event in store.load(NOW).events] == [str(number) for number in range(36, 100)]


def test_a_database_of_a_newer_specd_is_left_alone(tmp_path):
    """It is not read, not changed, and alerts are in memory."""
    path = tmp_path / "alerts.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    store = DurableStore(tmp_path)
    assert (store.durable, store.fault) == (False, "it was written by a newer specd (format 99)")
    store.close()
    assert path.read_bytes() == before


def test_a_broken_database_is_put_aside(tmp_path, caplog):
    """The alarm begins anew, on the disk; the broken file is kept for whoever wants to look."""
    (tmp_path / "alerts.db").write_bytes(b"this is no database, and longer than its header" * 50)
    store = DurableStore(tmp_path, clock=lambda: NOW)
    assert store.durable
    assert (tmp_path / "alerts.db.broken-1764430000").exists()
    assert "is broken" in caplog.text
    store.close()


def test_a_directory_that_cannot_be_made_leaves_alerts_in_memory(tmp_path, caplog):
    """The daemon serves, and says what is wrong."""
    (tmp_path / "file").write_text("")
    store = DurableStore(tmp_path / "file" / "state")
    assert not store.durable
    assert store.fault == "Not a directory"
    assert "they are in memory only, and lost when the daemon ends" in caplog.text
    store.close()


async def test_two_daemons_do_not_share_a_store(tmp_path):
    """The second one goes on in memory and says why; when the first is gone it takes over what that left."""
    first = DurableStore(tmp_path)
    await first.run(lambda store: store.commit(Changes(entries=(an_entry(1),))))
    second = DurableStore(tmp_path)
    assert second.fault == "another process has it open: give each specd a store.directory of its own"
    await second.run(lambda store: store.commit(Changes(entries=(an_entry(1, state=State.RESOLVED),))))
    await second.recover()
    assert not second.durable
    first.close()
    await second.recover()
    assert (second.durable, second.fault) == (True, None)
    (message,), _ = await second.run(taken)
    assert message.content.alerts[0].state is State.FIRING
    await second.run(lambda store: store.remove(message))
    (message,), _ = await second.run(taken)
    assert message.content.alerts[0].state is State.RESOLVED
    second.close()


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from specd.alerts.durable import DurableStore
from specd.alerts.store import Changes
from tests.daemon.test_alerts_store import an_entry, taken

async def main(directory):
    store = DurableStore(directory)
    await store.run(lambda one: one.commit(Changes(entries=(an_entry(1),))))
    assert store.durable
    # From now on no file can grow: the next write fails as on a full disk.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    await store.run(lambda one: one.commit(Changes(entries=(an_entry(2),))))
    assert not store.durable and store.fault
    await store.recover()
    assert not store.durable
    messages, alerts = await store.run(taken)
    assert alerts == [["f1"], ["f2"]], alerts
    await store.run(lambda one: one.remove(messages[0]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.recover()
    assert store.durable and store.fault is None
    store.close()
    again = DurableStore(directory)
    assert await again.run(lambda one: one.pending()) == {"ops": 1}
    again.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_full_disk_loses_nothing_while_the_daemon_lives(tmp_path):
    """What was there and what comes goes on in memory; when there is room again all of it is on the disk."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be kept in" in done.stderr
    assert "again" in done.stderr


def test_a_store_in_memory_makes_no_file(tmp_path, monkeypatch):
    """Its path is SQLite's word for memory, not a file of that name."""
    monkeypatch.chdir(tmp_path)
    Store(MEMORY).commit(some_changes())
    assert list(tmp_path.iterdir()) == []
