"""Measurements as they come, a line each: what a killed run has found is there for the next one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines, the first of which says what was asked."""

    def __init__(self, file: Path, asked: Mapping[str, Any], *, resume: bool) -> None:
        """Raises ValueError where the file to go on from was begun with other options."""
        self._known: dict[str, Any] = {}
        head = json.dumps(asked)
        if resume and file.exists():
            first, *lines = file.read_text("utf-8").splitlines()
            if first != head:
                raise ValueError(f"{file} was begun with other options, {first}: give these, or begin anew")
            self._known = dict(_entries(lines))
        file.parent.mkdir(parents=True, exist_ok=True)
        # What is known is written again: the line at which the last run was killed may be half a line.
        self._file = file
        file.write_text(head + "\n", "utf-8")
        for key, value in self._known.items():
            self._write(key, value)

    def measured(self, key: str, measure: Callable[[], Any]) -> Any:
        """What is known under the key, or else is measured now and written down. Values are as JSON has them."""
        if key not in self._known:
            self._known[key] = measure()
            self._write(key, self._known[key])
        return self._known[key]

    def knows(self, key: str) -> bool:
        """Whether it need not be measured any more."""
        return key in self._known

    def finish(self) -> None:
        """All is measured and written elsewhere: the file goes."""
        self._file.unlink()

    def _write(self, key: str, value: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, value]) + "\n")


def _entries(lines: list[str]) -> list[tuple[str, Any]]:
    found = []
    for line in lines:
        try:
            key, value = json.loads(line)
        except ValueError:
            break
        found.append((key, value))
    return found
