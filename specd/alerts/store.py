"""What of the alarm outlives the daemon, in SQLite: open alerts, who was told, silences, and the outbox.

outbox    messages to receivers, in the order in which they were put there
lane      messages of one receiver that must arrive in order: those of a group of alerts. Of a lane only the first
          message is on its way
lease     a message that is being sent is not taken again before its lease ends

An alert's change of state and the messages that tell of it are one transaction, and a transaction is on the disk when
it returns (`synchronous=FULL`). So a daemon that is killed at any moment has told, or will tell, of all that it knew.
"""

import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from specd.alerts.bounds import Bounds, Waiting, to_drop
from specd.alerts.events import Event
from specd.alerts.lifecycle import Alert, OpenAlert
from specd.alerts.silences import Silence

MEMORY: Final = Path(":memory:")
BOUNDS: Final = Bounds()

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE alerts (fingerprint TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE told (receiver TEXT, fingerprint TEXT, at REAL NOT NULL, PRIMARY KEY (receiver, fingerprint));
CREATE TABLE silences (id TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, receiver TEXT NOT NULL, lane TEXT NOT NULL,
    grouping TEXT NOT NULL, content BLOB NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL,
    leased_until REAL NOT NULL
);
CREATE INDEX lanes ON outbox (receiver, lane, seq);
"""
_EVENTS: Final = 64
_FARTHEST: Final = 3600.0
_MOST_IN_MESSAGE: Final = 100
_LATE: Final = 1 << 40

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Content:
    """What a message is about: alerts, each once, or an event."""

    alerts: tuple[Alert, ...] = ()
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a receiver is to be told, before it is part of a message."""

    receiver: str
    lane: str
    grouping: str
    """By what its lane was made."""
    due: float
    content: Content
    again: bool = False
    """It was told before, so it is left out while the lane still holds the same."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent to a receiver at once. The id stays over all attempts."""

    id: str
    receiver: str
    content: Content
    attempt: int
    """The first is 1. One that was begun counts, whatever became of it."""


@dataclass(slots=True)
class Changes:
    """What one transaction writes. None takes out."""

    alerts: Mapping[str, OpenAlert | None] = field(default_factory=dict)
    told: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    silences: Mapping[str, Silence | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    entries: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.alerts or self.told or self.silences or self.events or self.entries)


@dataclass(frozen=True, slots=True)
class Saved:
    """What was there at the start."""

    alerts: list[OpenAlert]
    told: dict[tuple[str, str], float]
    silences: list[Silence]
    events: list[Event]


class Store:
    """One database, one connection. Every method is one transaction and may raise `sqlite3.Error`."""

    def __init__(self, path: Path = MEMORY, bounds: Bounds = BOUNDS) -> None:
        """Opens it, makes it where there is none, and keeps every other process out."""
        self.path = path
        self._bounds = bounds
        self._db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def load(self, now: float) -> Saved:
        """All but the outbox, which is taken from bit by bit.

        Leases of a daemon that was killed are void, and no message waits longer than one ever has to: the clock may
        have been set back since.
        """
        with self._transaction() as db:
            db.execute("UPDATE outbox SET leased_until = 0, due = min(due, ?)", (now + _FARTHEST,))
            return Saved(
                alerts=self._values("alerts", OpenAlert),
                told={(name, key): at for name, key, at in db.execute("SELECT * FROM told")},
                silences=self._values("silences", Silence),
                events=self._values("events", Event),
            )

    def commit(self, changes: Changes) -> dict[str, int]:
        """Write all of it, or nothing. How many messages had to make room for it, by receiver."""
        with self._transaction() as db:
            _put(db, "alerts", "fingerprint", changes.alerts)
            _put(db, "silences", "id", changes.silences)
            for key, at in changes.told.items():
                db.execute("DELETE FROM told WHERE receiver = ? AND fingerprint = ?", key)
                if at is not None:
                    db.execute("INSERT INTO told VALUES (?, ?, ?)", (*key, at))
            for event in changes.events:
                db.execute("INSERT INTO events (value) VALUES (?)", (_encode(event),))
            if changes.events:
                db.execute("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", (_EVENTS,))
            for entry in changes.entries:
                self._enqueue(entry)
            return self._make_room() if changes.entries else {}

    def take(self, free: Mapping[str, int], now: float, lease_seconds: float) -> list[Message]:
        """Messages that are due, at most so many of each receiver, leased to the caller."""
        with self._transaction() as db:
            rows = [row for name, count in free.items() for row in self._due(name, count, now)]
            leases = [(now + lease_seconds, row[0]) for row in rows]
            db.executemany("UPDATE outbox SET leased_until = ?, attempts = attempts + 1 WHERE id = ?", leases)
        return [Message(name, to, _content(blob), attempts + 1) for name, to, blob, attempts in rows]

    def due(self) -> dict[str, float]:
        """When there is something to take, by receiver, in Unix seconds."""
        with self._transaction() as db:
            return dict(
                db.execute(
                    "SELECT receiver, min(max(due, leased_until)) FROM outbox WHERE seq IN "
                    "(SELECT min(seq) FROM outbox GROUP BY receiver, lane) GROUP BY receiver"
                ).fetchall()
            )

    def remove(self, message: Message) -> None:
        """It was delivered, or never will be."""
        with self._transaction() as db:
            db.execute("DELETE FROM outbox WHERE id = ?", (message.id,))

    def retry(self, message: Message, due: float) -> None:
        """The attempt has failed: the next one is due then."""
        with self._transaction() as db:
            db.execute("UPDATE outbox SET due = ?, leased_until = 0 WHERE id = ?", (due, message.id))

    def pending(self) -> dict[str, int]:
        """Messages in the outbox by receiver."""
        with self._transaction() as db:
            return dict(db.execute("SELECT receiver, count(*) FROM outbox GROUP BY receiver").fetchall())

    def serve(self, receivers: Mapping[str, str]) -> dict[str, int]:
        """These are the receivers, with how messages are grouped for each.

        What is there for others is taken out: how many messages each of them will not get. What was grouped otherwise
        goes first, in its order.
        """
        others = {name: count for name, count in self.pending().items() if name not in receivers}
        with self._transaction() as db:
            for table in ("outbox", "told"):
                known = db.execute(f"SELECT DISTINCT receiver FROM {table}").fetchall()  # noqa: S608  one of two
                gone = [row for row in known if row[0] not in receivers]
                db.executemany(f"DELETE FROM {table} WHERE receiver = ?", gone)  # noqa: S608  one of two
            for name, grouping in receivers.items():
                db.execute(
                    "UPDATE outbox SET lane = '' WHERE receiver = ? AND grouping <> ?", (name, grouping)
                )
        return others

    def shift(self, seconds: float) -> None:
        """The clock was set: a message that is due in some time shall be due in the same time."""
        with self._transaction() as db:
            db.execute("UPDATE outbox SET due = due + ?, leased_until = leased_until + ?", (seconds, seconds))

    def copy_to(self, other: "Store") -> None:
        """Make the other one the same as this one."""
        self._db.backup(other._db)  # noqa: SLF001  of the same class

    def adopt(self, other: "Store") -> None:
        """Take over what the other one knows and this one does not; its messages go before those of this one."""
        with self._transaction() as db:
            db.execute("UPDATE outbox SET seq = seq + ? WHERE seq < ?", (_LATE, _LATE))
            for table, columns in (("outbox", 9), ("alerts", 2), ("told", 3), ("silences", 2)):
                rows = other._db.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608, SLF001
                db.executemany(
                    f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * columns)})",  # noqa: S608
                    rows,
                )

    def _prepare(self) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise sqlite3.DatabaseError(f"it was written by a newer specd (format {version})")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if version == 0:
            with self._transaction() as db:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _values(self, table: str, kind: type[Any]) -> list[Any]:
        rows = self._db.execute(f"SELECT value FROM {table} ORDER BY rowid")  # noqa: S608  a name of ours
        return [msgspec.json.decode(value, type=kind) for (value,) in rows]

    def _enqueue(self, entry: Entry) -> None:
        """Into the last message of the lane, where nobody has tried to send it; else behind it."""
        lane = "" if self._in_order(entry.receiver) else entry.lane
        rows = self._db.execute(
            "SELECT id, content, attempts FROM outbox WHERE receiver = ? AND lane = ? ORDER BY seq",
            (entry.receiver, lane),
        ).fetchall()
        waiting = [(name, _content(content), attempts) for name, content, attempts in rows]
        if entry.again and any(_says(content, entry.content) for _, content, _ in waiting):
            return
        if waiting and waiting[-1][2] == 0 and _may_join(waiting[-1][1], entry.content):
            name, content, _ = waiting[-1]
            joined = Content(content.alerts + entry.content.alerts)
            self._db.execute("UPDATE outbox SET content = ? WHERE id = ?", (_encode(joined), name))
            return
        self._db.execute(
            "INSERT INTO outbox (id, receiver, lane, grouping, content, attempts, due, leased_until)"
            " VALUES (?, ?, ?, ?, ?, 0, ?, 0)",
            (
                f"msg_{uuid.uuid4().hex}",
                entry.receiver,
                lane,
                entry.grouping,
                _encode(entry.content),
                entry.due,
            ),
        )

    def _make_room(self) -> dict[str, int]:
        """Where there is more than may wait, some of it goes."""
        count, size = self._db.execute("SELECT count(*), total(length(content)) FROM outbox").fetchone()
        if not self._bounds.excess(count, size):
            return {}
        rows = self._db.execute(
            "SELECT id, receiver, content FROM outbox WHERE leased_until = 0 ORDER BY seq"
        )
        waiting = [Waiting(name, to, _content(blob).alerts, len(blob)) for name, to, blob in rows]
        dropped = to_drop(waiting, count, size, self._bounds)
        self._db.executemany("DELETE FROM outbox WHERE id = ?", [(one.id,) for one in dropped])
        return Counter(one.receiver for one in dropped)

    def _in_order(self, receiver: str) -> bool:
        found = self._db.execute("SELECT 1 FROM outbox WHERE receiver = ? AND lane = '' LIMIT 1", (receiver,))
        return found.fetchone() is not None

    def _due(self, receiver: str, count: int, now: float) -> list[Any]:
        return self._db.execute(
            "SELECT id, receiver, content, attempts FROM outbox WHERE seq IN "
            "(SELECT min(seq) FROM outbox WHERE receiver = ? GROUP BY lane) "
            "AND due <= ? AND leased_until <= ? ORDER BY due, seq LIMIT ?",
            (receiver, now, now, count),
        ).fetchall()


def _put(db: sqlite3.Connection, table: str, key: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        db.execute(f"DELETE FROM {table} WHERE {key} = ?", (name,))  # noqa: S608  names of ours
        if value is not None:
            db.execute(f"INSERT INTO {table} VALUES (?, ?)", (name, _encode(value)))  # noqa: S608  names of ours


def _content(blob: bytes) -> Content:
    return msgspec.json.decode(blob, type=Content)


def _may_join(message: Content, more: Content) -> bool:
    """An alert is in a message once: its next state comes after it."""
    there = {alert.fingerprint for alert in message.alerts}
    alike = message.event is None and more.event is None
    fits = len(message.alerts) + len(more.alerts) <= _MOST_IN_MESSAGE
    return alike and fits and there.isdisjoint(alert.fingerprint for alert in more.alerts)


def _says(message: Content, wanted: Content) -> bool:
    """Whether the alert is in it in the same state."""
    said = {(alert.fingerprint, alert.state) for alert in message.alerts}
    return all((alert.fingerprint, alert.state) in said for alert in wanted.alerts)
