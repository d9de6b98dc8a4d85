"""Whose fault an engine's error is decides the status: 400 is for the user to change, 500 is ours."""

import pytest

from engine.api import Output
from specd.flights import Flight, UnservedError
from specd.http.errors import from_refusal


@pytest.mark.parametrize(
    ("refused", "status", "kind"), [(True, 400, "invalid_request_error"), (False, 500, "server_error")]
)
async def test_a_request_that_cannot_run_is_the_users_to_change(
    refused: bool, status: int, kind: str
) -> None:
    with Flight(admitted=0.0, tenant="t", release=lambda _: None) as flight:
        flight.put(
            Output(id="r", tokens=[], finish="error", error="too large: make it smaller", refused=refused)
        )
        with pytest.raises(UnservedError) as unserved:
            await flight.next()
    error = from_refusal(unserved.value.refusal)
    assert (error.status, error.message) == (status, "too large: make it smaller")
    assert error.body()["error"]["type"] == kind
