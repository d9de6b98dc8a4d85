"""Bodies made from the OpenAPI document against a real engine: what only it can tell must be the client's fault too."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import Phase
from schemathesis.checks import CHECKS

from specd.http.openapi import document
from tests.daemon.fuzzing import fuzzed
from tests.scenarios.stage import RealDaemon, Stage

API = schemathesis.openapi.from_dict(document("0")).include(method="POST")
CHANGED = CHECKS.get_by_names(["positive_data_acceptance", "negative_data_rejection"])
"""What the body's change below makes good again must not be refused."""


@pytest.fixture(scope="module")
def small(stage: Stage) -> Iterator[RealDaemon]:
    """With a context that lets no request be long."""
    with stage.daemon(engine={"max_running": 8, "max_context": 64}) as daemon:
        yield daemon.ready()


GOOD = {"prompt": "the target decides", "messages": [{"role": "user", "content": "the target decides"}]}


@API.parametrize()
@fuzzed(40, share=2, phases=[Phase.generate])
def test_whatever_comes_is_answered_as_the_document_says(case, small):
    """Test that parameters and grammars of any value, with a good prompt, are no fault of the server's."""
    if isinstance(case.body, dict):
        case.body |= {name: GOOD[name] for name in GOOD.keys() & case.body.keys()}
        case.body |= {"max_tokens": 12, "min_tokens": 0} if case.body.get("max_tokens") else {}
    case.call_and_validate(base_url=small.url, excluded_checks=CHANGED)
