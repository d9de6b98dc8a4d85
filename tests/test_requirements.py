"""The locked requirements and pyproject.toml say the same."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PACKAGES = {"engine", "policies", "specd"}
NOT_OURS_TO_BRING = {
    "triton": "a part of torch's builds for CUDA, without which it is not imported",
    "vllm": "whoever wants that engine installs it",
}
DEV = [line for line in PROJECT["optional-dependencies"]["dev"] if not line.startswith(PROJECT["name"])]


def locked(*files):
    lines = [line for file in files for line in (ROOT / "requirements" / file).read_text().splitlines()]
    requirements = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in requirements}


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        (PROJECT["dependencies"], ["run.txt"]),
        (PROJECT["optional-dependencies"]["plot"], ["run.txt", "dev.txt"]),
        (PROJECT["optional-dependencies"]["tracing"], ["run.txt", "dev.txt"]),
        (DEV, ["run.txt", "dev.txt"]),
    ],
    ids=["run", "plot", "tracing", "dev"],
)
def test_lock_satisfies_the_project(wanted, files):
    """Test that everything that the project asks for is pinned, to a version that it allows."""
    pins = locked(*files)
    for requirement in map(Requirement, wanted):
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin.removeprefix("==")), requirement


def imported(file: Path) -> Iterator[str]:
    """The packages that a module names, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_what_is_imported_is_asked_for():
    """Test that whatever the three packages import comes with them or with an extra, not by the grace of others."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["plot"], *extras["tracing"]]
    asked_for = {canonicalize_name(Requirement(line).name) for line in lines}
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    names = {name for file in files for name in imported(file)} - sys.stdlib_module_names - PACKAGES
    brought_by = packages_distributions()
    missing = {
        name for name in names if asked_for.isdisjoint(map(canonicalize_name, brought_by.get(name, [])))
    }
    assert missing == NOT_OURS_TO_BRING.keys()


def test_every_package_is_pinned():
    """Test that no line of the lock leaves the version open, and that run and dev do not disagree."""
    run, dev = locked("run.txt"), locked("dev.txt")
    assert all(pin.startswith("==") and "+" not in pin for pin in (run | dev).values())
    assert not run.keys() & dev.keys()
