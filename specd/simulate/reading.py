"""Traces from files: CSV with a header, or JSON lines.

what            CSV column                JSON key     without it
arrival         TIMESTAMP, t              t            refused
prompt          ContextTokens, context    context      refused
answer          GeneratedTokens, generated  generated  refused
traffic class   class                     class        the name of the file

An arrival is a date and time, or seconds. Lines in another order than that of arrival are sorted.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from policies.simulate import Trace
from specd.errors import UserError

_NAMES: Final = {
    "timestamp": "t",
    "t": "t",
    "contexttokens": "context",
    "context": "context",
    "generatedtokens": "generated",
    "generated": "generated",
    "class": "class",
}
_NEEDED: Final = ("t", "context", "generated")


class _Line(NamedTuple):
    """One request."""

    arrival: float
    context: int
    generated: int
    traffic_class: str


def read_trace(path: Path) -> Trace:
    """The requests of a file. Raises UserError, which names the line."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    records = _json_lines(text) if text.lstrip().startswith("{") else _csv(path, text)
    lines = [_at(path, number, record) for number, record in records]
    if not lines:
        raise UserError(f"{path} has no requests: {_EXPECTED}.")
    return _trace(lines)


_EXPECTED: Final = (
    "a trace is a CSV file whose header names TIMESTAMP, ContextTokens and GeneratedTokens, or has in each line"
    ' an object such as {"t": 0.5, "context": 900, "generated": 120, "class": "chat"}'
)


def _at(path: Path, number: int, record: dict[str, Any]) -> _Line:
    try:
        return _line(record, path.stem)
    except ValueError as error:
        raise UserError(f"{path}:{number}: {error}.") from error


def _csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.reader(text.splitlines())
    header = [_NAMES.get(name.strip().lower(), "") for name in next(rows, [])]
    if missing := [name for name in _NEEDED if name not in header]:
        raise UserError(f"{path}:1: the header has no column for {' and '.join(missing)}: {_EXPECTED}.")
    for row in rows:
        if row:
            yield rows.line_num, dict(zip(header, row, strict=False))


def _json_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        yield number, record if isinstance(record, dict) else {}


def _line(record: dict[str, Any], unnamed: str) -> _Line:
    if missing := [name for name in _NEEDED if record.get(name) is None]:
        raise ValueError(f"no request with {', '.join(missing)}: {_EXPECTED}")
    return _Line(
        _arrival(record["t"]),
        _count("context", record["context"]),
        _count("generated", record["generated"]),
        str(record.get("class") or unnamed),
    )


def _arrival(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(
            f"{value!r} is no time: write seconds, or a date such as 2023-11-16 18:17:03.97"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(name: str, value: object) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} is {value!r}, which is not a whole number of at least 1")
    return count


def _trace(lines: Iterable[_Line]) -> Trace:
    ordered = sorted(lines, key=lambda line: line.arrival)
    classes = sorted({line.traffic_class for line in ordered})
    index = {name: place for place, name in enumerate(classes)}
    arrival = np.array([line.arrival for line in ordered])
    return Trace(
        arrival=arrival - arrival[0],
        context=np.array([line.context for line in ordered], dtype=np.int64),
        generated=np.array([line.generated for line in ordered], dtype=np.int64),
        kind=np.array([index[line.traffic_class] for line in ordered], dtype=np.int64),
        classes=tuple(classes),
    )
