"""Results as they are kept: a JSON file with everything and a page for people, with the command that made them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.claims import markdown
from engine.processor import quick_format
from specd.bench.report import environment

_TITLES: Final = {
    "engine": "The engine against transformers' generate",
    "drafts": "What drafts are worth",
    "traffic": "Policies on production traffic, and under noise",
    "policies": "The adaptive policy against every static draft length",
    "drift": "How soon drift is found, and how often for nothing",
    "delivery": "Delivery of alerts while everything fails",
    "updates": "What changes of the target do to its drafts, and who notices",
    "http": "What HTTP and the way to the engine cost",
    "vllm": "Our policy on vLLM",
    "soak": "Half an hour of everything at once",
    "observe": "A target swapped behind the URL of another engine",
    "replay": "Production traffic, scaled down, against the live daemon",
}


def write(
    folder: Path,
    name: str,
    command: str,
    figures: Mapping[str, Any],
    page: Iterable[str],
    *,
    about: str = f"demo model, {quick_format()}, CPU",
    title: str = "",
) -> None:
    """`name`.json and `name`.md in the folder, which is made. page: without its title. about: what was measured. title:
    that of another name.
    """
    date = datetime.now(UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    document = {"command": command, "date": date, "environment": environment(), **figures}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    made = f"Made by `{command}` on {date}; {about}. The machine and all figures are in `{name}.json`."
    (folder / f"{name}.md").write_text("\n".join([f"# {_TITLES[title or name]}", "", made, "", *page]))


def section(words: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with what it shows above it."""
    return [words, "", *markdown(header, rows), ""]
