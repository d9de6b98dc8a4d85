"""Configs of any kind before `specd check` and a running daemon: a sentence or a good one, never a fault of ours."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from specd.cli import main
from tests.daemon.config_strategies import documents, trees
from tests.daemon.conftest import Daemons, write_served_model
from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.fuzzing import fuzzed

DANGEROUS = frozenset(
    {
        "model.target.path",  # each of these has another engine started
        "model.target.dtype",
        "model.target.quantization",
        "model.target.revision",
        "engine.hang_seconds",  # the engine would be taken for dead, as asked for
        "admin.token_file",
    }
)


PHASES = (Phase.generate, Phase.shrink)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "there").write_text("whsec_c3BlY2RzcGVjZHNwZWNkc3BlY2RzcGVjZA==\n")
    return write_served_model(directory / "tiny")


@fuzzed(100, share=2, phases=PHASES)
@given(st.data())
def test_a_check_of_any_file_is_good_or_a_sentence(model: Path, data: st.DataObject) -> None:
    """Test that whatever stands in the config, `specd check` exits 0 or 2, and with 2 says why, on lines of its own."""
    file = model.parent / "specd.toml"
    file.write_bytes(data.draw(documents(model)))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["check", "-c", str(file)])
    assert code in {0, 2}
    assert bool(err.getvalue().strip()) == (code == 2)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start().ready()
    daemons.close()


@pytest.fixture(scope="module")
def admin(daemon: DaemonProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=daemon.admin, timeout=30) as client:
        yield client


@fuzzed(100, share=4, phases=PHASES)
@given(st.data())
def test_a_reload_of_any_file_is_taken_over_or_refused(
    daemon: DaemonProcess, admin: httpx2.Client, model: Path, data: st.DataObject
) -> None:
    """Test that a running daemon with any text added to its config takes it over or refuses it, whole or in part, and
    is as it was once the text has gone.
    """
    fragment = daemon.config_file.parent / "conf.d" / "50.toml"
    fragment.parent.mkdir(exist_ok=True)
    fragment.write_bytes(data.draw(documents(model, leaving_out=DANGEROUS)))
    answer = admin.post("/admin/v1/reload", json={"partial": data.draw(st.booleans())})
    fragment.unlink()
    assert answer.status_code in {200, 409, 422}, answer.text
    assert admin.post("/admin/v1/reload").status_code == 200


@fuzzed(100, share=4, phases=PHASES)
@given(st.data())
def test_any_values_that_are_set_are_taken_over_or_refused(
    admin: httpx2.Client, model: Path, data: st.DataObject
) -> None:
    """Test the same of keys that are set."""
    values = data.draw(trees(model, leaving_out=DANGEROUS).filter(_is_json))
    answer = admin.patch("/admin/v1/config", json=values)
    assert answer.status_code in {200, 400, 409, 422}, answer.text
    assert admin.post("/admin/v1/reload").status_code == 200


def test_no_fault_was_logged(daemon: DaemonProcess) -> None:
    """Test that all of the above left no traceback, and a daemon that serves as before."""
    assert "Traceback" not in daemon.log
    assert daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200


def _is_json(values: Any) -> bool:
    match values:
        case dict():
            return all(map(_is_json, values.values()))
        case list():
            return all(map(_is_json, values))
        case float():
            return values - values == 0
        case _:
            return isinstance(values, str | int)
