"""What people install: sdist and wheel are built, and the wheel is put into an environment of its own and run."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.daemon.model_directory import write_model

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "systemd" / "Dockerfile").read_text()
PACKAGES = ("engine", "policies", "specd")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command: str | Path, **options: object) -> str:
    """Its output; it is to succeed, and must not see the checkout."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=120, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied() -> list[str]:
    """What the Dockerfile takes from the repository."""
    lines = [
        line.split()[1:]
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    return [source for *sources, _ in lines for source in sources]


def files_of(package: str) -> set[str]:
    found = (ROOT / package).rglob("*")
    return {
        str(file.relative_to(ROOT)) for file in found if file.is_file() and "__pycache__" not in file.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with sdist and wheel, the wheel made from the sdist, of what the Dockerfile copies and no more."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in copied():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source, cwd=source)
    return dist


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an environment of its own, which sees the packages of this one behind it."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
    )
    (packages,) = (home / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return home


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    """Test that modules, kernels, the trained head, prompts and whatever else lies there are in it, and no more."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.split("/")[0] in PACKAGES}
    assert names == set().union(*map(files_of, PACKAGES))


def test_the_sdist_has_what_a_distribution_wants(built: Path) -> None:
    """Test that licence, units and rules are in it beside the packages."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "systemd/specd@.service", "docs/prometheus/rules.yml"} <= names
    assert set().union(*map(files_of, PACKAGES)) <= names


def test_the_installed_command_runs_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    """Test version, schema, check, completion and package data by the installed program, in another directory."""
    specd = installed / "bin" / "specd"
    python = installed / "bin" / "python"
    where = run(python, "-c", "import specd, engine, policies; print(specd.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed))
    assert run(specd, "--version", cwd=tmp_path) == f"{PROJECT['version']}\n"
    assert "PolicySection" in json.loads(run(specd, "schema", cwd=tmp_path))["$defs"]
    config = tmp_path / "specd.toml"
    config.write_text(f'[model.target]\npath = "{write_model(tmp_path / "model")}"\n')
    assert "ok: model" in run(specd, "check", "-c", config, cwd=tmp_path)
    assert "eagle" in run(specd, "draft", "list", "-c", config, cwd=tmp_path)
    assert "complete -F _specd specd" in run(specd, "completion", "bash", cwd=tmp_path)


def test_units_and_rules_are_installed_too(installed: Path) -> None:
    """Test that who has no checkout finds under share/ what a checkout has."""
    share = installed / "share" / "specd"
    for name in ("specd.service", "specd@.service", "specd.target", "specd.service.d/gpu.conf"):
        assert (share / "systemd" / name).read_text() == (ROOT / "systemd" / name).read_text()
    assert (share / "prometheus" / "rules.yml").exists()
    shipped = {file.name for file in (ROOT / "systemd").rglob("*.*") if file.is_file()}
    assert shipped == {file.name for file in (share / "systemd").rglob("*.*") if file.is_file()}


def test_the_image_is_built_from_what_there_is() -> None:
    """Test of the Dockerfile what can be told without building it: sources, torch's exact CPU build, an unprivileged
    user, a health check and a signal that the daemon drains by."""
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    assert "requirements/run.txt" in copied()
    torch = next(line for line in PROJECT["dependencies"] if line.startswith("torch=="))
    assert f"ARG TORCH={torch.removeprefix('torch==')}+cpu\n" in DOCKERFILE
    last = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert re.search(r"^USER (?!root)\w+$", last, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\n.*/health", last, re.MULTILINE)
