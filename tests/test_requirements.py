"""The locked requirements and pyproject.toml say the same."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

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


def test_every_package_is_pinned():
    """Test that no line of the lock leaves the version open, and that run and dev do not disagree."""
    run, dev = locked("run.txt"), locked("dev.txt")
    assert all(pin.startswith("==") and "+" not in pin for pin in (run | dev).values())
    assert not run.keys() & dev.keys()
