"""Prompts that nobody here wrote: Spec-Bench by category, HumanEval, and the eight of the peers' comparison."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CODE: Final = "code"
CHAT: Final = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""The categories of MT-bench, whose prompts are chats."""


@dataclass(frozen=True, slots=True)
class Question:
    """A user's message, and what it counts under."""

    name: str
    category: str
    text: str


def spec_bench(data: Path, each: int) -> list[Question]:
    """The first `each` of every category, their first turns."""
    found: dict[str, list[Question]] = {}
    for line in _lines(data / "spec_bench.jsonl"):
        category = line["category"]
        found.setdefault(category, []).append(Question(str(line["question_id"]), category, line["turns"][0]))
    return [question for questions in found.values() for question in questions[:each]]


def human_eval(data: Path, most: int) -> list[Question]:
    """The first so many programs to complete."""
    lines = list(_lines(data / "human_eval.jsonl"))[:most]
    return [Question(line["task_id"], CODE, line["prompt"]) for line in lines]


def eight(data: Path) -> list[Question]:
    """Edits, chats, and extractions or summaries."""
    found = json.loads((data / "bench_prompts.json").read_text())
    return [Question(each["id"], each["kind"], each["user"]) for each in found]


def by_category(questions: Sequence[Question]) -> list[tuple[str, list[Question]]]:
    """In the order in which the categories appear."""
    names = dict.fromkeys(question.category for question in questions)
    return [(name, [q for q in questions if q.category == name]) for name in names]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
