"""Policies are functions of what they are told."""

import ast
import subprocess
import sys
from pathlib import Path

import policies

ALLOWED = frozenset(
    [
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "math",
        "numpy",
        "policies",
        "statistics",
        "typing",
    ]
)


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative imports hide where they lead"
            found.add(str(node.module).partition(".")[0])
    return found


def test_policies_import_neither_torch_nor_a_clock_nor_io() -> None:
    """Test that every module imports numpy, its neighbours and stdlib that computes, and nothing else: what is new is
    put on the list, or left out.
    """
    files = [*Path(policies.__file__).parent.rglob("*.py")]
    assert len(files) > 20
    strangers = {file.name: imported(file) - ALLOWED for file in files}
    assert not {name: modules for name, modules in strangers.items() if modules}


def test_a_policy_runs_where_there_is_no_torch() -> None:
    """Test that nothing imports it behind the policies' back."""
    decides = (
        "import sys; sys.modules['torch'] = sys.modules['engine'] = sys.modules['specd'] = None\n"
        "from policies.base import LoadView, Option, RequestView\n"
        "from policies.controller import Controller\n"
        "from policies.settings import PolicySettings\n"
        "view = RequestView('r', 'c', 't', 9, 9, True, None, 0, (Option('ngram', 4),))\n"
        "print(Controller(PolicySettings()).decide(LoadView(1, 0, 1.0), [view])[0].k)"
    )
    done = subprocess.run(
        [sys.executable, "-c", decides], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 0
