"""Bodies made from the OpenAPI document, good ones and bad ones, against a daemon with a fake engine."""

from collections.abc import Iterator

import pytest
import schemathesis
from schemathesis.checks import CHECKS

from specd.http.openapi import document
from tests.daemon.conftest import TOOL_TEMPLATE, Daemons
from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.fuzzing import fuzzed

API = schemathesis.openapi.from_dict(document("0"))
SEMANTIC = CHECKS.get_by_names(["positive_data_acceptance"])
"""A body may conform to the document and ask for what cannot be, say for more tokens than the context holds."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    (daemons.model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    daemons.engine.behave(meek=True)  # a prompt of made-up tokens is not to be a command to it
    yield daemons.start().ready()
    daemons.close()


@API.parametrize()
@fuzzed(40, share=2)  # of all endpoints, two have bodies
def test_whatever_comes_is_answered_as_the_document_says(case, daemon):
    """Test that no body is a fault of the server's, that a bad one is refused, and that every answer conforms."""
    case.call_and_validate(base_url=daemon.url, excluded_checks=SEMANTIC)


def test_no_fault_was_logged(daemon):
    """Test that all of the above left no traceback, and a daemon that serves."""
    assert "Traceback" not in daemon.log
    assert daemon.status()["ready"]


def test_the_document_is_served(daemon):
    """Test that what the bodies above were made from is what clients get, without a key."""
    served = daemon.get("/openapi.json").json()
    assert served == document(served["info"]["version"])
