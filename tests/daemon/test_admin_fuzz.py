"""What is sent to the admin listener, made from its document, good and bad, against a daemon with a fake engine."""

from collections.abc import Iterator

import pytest
import schemathesis
from schemathesis.checks import CHECKS
from starlette.applications import Starlette
from starlette.routing import Route

from specd.http.admin import admin_app
from specd.http.crashes import crash_routes
from specd.http.keys import Keys
from specd.http.observed import observed_routes
from specd.http.openapi_admin import admin_document
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.fuzzing import fuzzed

NOT_DESCRIBED = {"/", "/admin/v1/events"}
"""A page for people, and what never ends."""
API = schemathesis.openapi.from_dict(admin_document("0"))
SEMANTIC = CHECKS.get_by_names(["positive_data_acceptance"])
"""What is sent may conform to the document and ask for what there is not."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    (daemons.model.parent / "canary.jsonl").write_text('{"prompt": "one alone"}\n')
    canary = f'[canary]\nprompts = "{daemons.model.parent}/canary.jsonl"\ntokens = 8\n'
    # Any two words with a stroke between them are the name of a model on the hub, where nobody is to look.
    yield daemons.start(canary, env={"HF_HUB_OFFLINE": "1"}).ready()
    daemons.close()


@API.parametrize()
@fuzzed(30, share=10)  # of all endpoints, ten have bodies or parameters
def test_whatever_comes_is_answered_as_the_document_says(case, daemon):
    """Test that nothing that is sent is a fault of the daemon's, that what is bad is refused, and that every answer
    conforms.
    """
    case.call_and_validate(base_url=daemon.admin, excluded_checks=SEMANTIC)


def test_no_fault_was_logged(daemon):
    """Test that all of the above left no traceback, and a daemon that serves."""
    assert "Traceback" not in daemon.log
    assert daemon.status()["ready"]


def test_the_document_names_every_endpoint(daemon):
    """Test that there is no other, and none that is not there, by path and method; and that it is served."""
    pages = [*crash_routes(None), *observed_routes(None)]
    app = admin_app(None, None, pages, Keys(None, ""), lambda _: True)
    while not isinstance(app, Starlette):
        app = app._app
    there = {
        (route.path, method.lower())
        for route in app.routes
        if isinstance(route, Route) and route.path not in NOT_DESCRIBED
        for method in route.methods - {"HEAD"}
    }
    served = daemon.get("/admin/v1/openapi.json").json()
    assert served == admin_document(served["info"]["version"])
    assert {(path, method) for path, item in served["paths"].items() for method in item} == there
