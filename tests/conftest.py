"""What all tests have in common: processes that start soon, and an order in which workers end together."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

# Daemons and engines are processes of their own, hundreds of them: what they import is compiled once for all.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # without a GPU; Triton asks for it when it is first imported

HERE: Final = Path(__file__).parent
LATER: Final = ("daemon", "engine", "law", "policies")
"""Directories, the shorter the files in them the later."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A worker takes file after file: those with much to wait for come first, lest one of them is the last."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    directory = item.path.relative_to(HERE).parts[0]
    return LATER.index(directory) + 1 if directory in LATER else 0
