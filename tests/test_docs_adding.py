"""The pages "Adding a …" are tried by doing what they say, in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("adding-a-*.md"))
STEP = re.compile(
    r"(?P<before>[^\n]*)\n\n```(?P<kind>python|diff|sh)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
NAMED = re.compile(r"`([\w/]+\.py)`:$")


class Step(NamedTuple):
    """A block of a page: a file, a change of one, or commands."""

    kind: str
    file: str
    text: str


def steps(page: str) -> Iterator[Step]:
    """A block is about the file that the line before it ends with, or else about that of the block before it."""
    file = ""
    for found in STEP.finditer(page):
        named = NAMED.search(found["before"])
        file = named[1] if named else file
        yield Step(found["kind"], file, found["text"])


def changed(text: str, diff: str) -> str:
    """Raises AssertionError unless what the diff changes is there, once."""
    lines = [line or " " for line in diff.splitlines()]
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert text.count(old) == 1, f"this is not there once:\n{old}"
    return text.replace(old, new)


def do(step: Step, copy: Path) -> None:
    file = copy / step.file
    if step.kind == "python":
        assert not file.exists(), f"{step.file} is there already"
        file.write_text(step.text)
    elif step.kind == "diff":
        file.write_text(changed(file.read_text(), step.text))
    else:
        for command in step.text.splitlines():
            if command.startswith("python "):
                run(command, copy)


def run(command: str, copy: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:], "-p", "no:cacheprovider"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of the code, without the weights in it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for name in ("engine", "policies", "specd", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_can_be_followed(page: Path, copy: Path) -> None:
    """Test that each file and change of the page fits the code as it is, and that its tests then pass."""
    there = list(steps(page.read_text("utf-8")))
    assert {step.kind for step in there} == {"python", "diff", "sh"}
    for step in there:
        do(step, copy)


def test_a_change_that_does_not_fit_is_noticed() -> None:
    """Test that a page that has fallen behind the code fails."""
    assert changed("a\nb\nc\n", " a\n-b\n+d\n") == "a\nd\nc\n"
    with pytest.raises(AssertionError, match="not there once"):
        changed("a\nc\n", " a\n-b\n+d\n")
