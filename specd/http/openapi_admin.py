"""The OpenAPI document of the admin listener: bodies from what parses them, answers by their kind alone."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from specd.http.admin_bodies import DraftBody, DriftBody, ReloadBody, TargetBody
from specd.http.alerts import SilenceBody, TestBody
from specd.http.openapi import ERROR, Schema

_REFERENCE: Final = "#/components/schemas/{name}"
_BODIES: Final = (ReloadBody, TargetBody, DraftBody, DriftBody, TestBody, SilenceBody)
_OBJECT: Final[Schema] = {"type": "object"}
_LIMIT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}

_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request cannot be understood; the message says why",
    401: "No valid token",
    403: "The page of another origin, or another host's name",
    404: "There is no such thing",
    409: "Not now, or only with a restart",
    422: "Refused; the message says why, and nothing was changed",
}


def admin_document(version: str) -> Schema:
    """For `GET /admin/v1/openapi.json`."""
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "specd, admin listener", "version": version},
        "paths": _paths(),
        "components": {
            "schemas": {**schemas, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> Schema:
    v1 = "/admin/v1"
    return {
        "/metrics": {"get": _operation("All metrics", answers="text/plain")},
        f"{v1}/openapi.json": {"get": _operation("This document")},
        f"{v1}/status": {"get": _operation("How everything stands")},
        f"{v1}/config": {
            "get": _operation("The config in force, without secrets"),
            "patch": _operation("Set hot keys until the next reload", body=_OBJECT, refusals=(400, 409, 422)),
        },
        f"{v1}/reload": {
            "post": _operation(
                "Read the config again", body=_of(ReloadBody), needs_body=False, refusals=(400, 409, 422)
            )
        },
        f"{v1}/decisions": {
            "get": _operation(
                "The last rounds with their reasons",
                parameters={"limit": _LIMIT, "request": {"type": "string"}},
                refusals=(400,),
            )
        },
        f"{v1}/target": {
            "get": _operation("What serves, and how the last change went"),
            "post": _operation("Serve another target", body=_of(TargetBody), refusals=(400, 409, 422)),
        },
        f"{v1}/draft": {
            "post": _operation("Draft with another head", body=_of(DraftBody), refusals=(400, 409, 422))
        },
        f"{v1}/drift/accept": {
            "post": _operation(
                "Take acceptance as it is for the baseline",
                body=_of(DriftBody),
                needs_body=False,
                refusals=(400, 422),
            )
        },
        f"{v1}/target/rollback": {"post": _operation("Serve the previous target", refusals=(409, 422))},
        f"{v1}/target/canary": {"post": _operation("Replay the canary", refusals=(409, 422))},
        f"{v1}/crashes": {"get": _operation("Reports of engines that died")},
        f"{v1}/crashes/{{id}}": {
            "get": _operation(
                "One of them", place="path", parameters={"id": {"type": "string"}}, refusals=(404,)
            )
        },
        f"{v1}/observed": {"get": _operation("Engines of others that are looked at")},
        f"{v1}/observed/{{name}}/accept": {
            "post": _operation(
                "What answers there now is meant to",
                place="path",
                parameters={"name": {"type": "string"}},
                refusals=(422,),
            )
        },
        f"{v1}/observed/{{name}}/canary": {
            "post": _operation(
                "Replay the canary there",
                place="path",
                parameters={"name": {"type": "string"}},
                refusals=(422,),
            )
        },
        f"{v1}/alerts": {"get": _operation("Open alerts, and how their receivers are")},
        f"{v1}/alerts/test": {
            "post": _operation(
                "Tell every receiver of a test", body=_of(TestBody), needs_body=False, refusals=(400,)
            )
        },
        f"{v1}/silences": {
            "get": _operation("Silences"),
            "post": _operation("Silence alerts", body=_of(SilenceBody), status=201, refusals=(400, 422)),
            "delete": _operation("End a silence", parameters={"id": {"type": "string"}}, refusals=(404,)),
        },
    }


def _operation(
    summary: str,
    *,
    body: Schema | None = None,
    needs_body: bool = True,
    parameters: Mapping[str, Schema] | None = None,
    place: str = "query",
    status: int = 200,
    answers: str = "application/json",
    refusals: tuple[int, ...] = (),
) -> Schema:
    answer: Schema = {"type": "string"} if answers == "text/plain" else _OBJECT
    error = {"application/json": {"schema": _of_name("Error")}}
    found: Schema = {
        "summary": summary,
        "security": [{}, {"token": []}],
        "responses": {
            str(status): {"description": summary, "content": {answers: {"schema": answer}}},
            **{
                str(code): {"description": _REFUSALS[code], "content": error}
                for code in sorted({401, 403, *refusals})
            },
        },
    }
    if body is not None:
        found["requestBody"] = {"required": needs_body, "content": {"application/json": {"schema": body}}}
    if parameters:
        found["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": one}
            for name, one in parameters.items()
        ]
    return found


def _of(kind: type[Any]) -> Schema:
    return _of_name(kind.__name__)


def _of_name(name: str) -> Schema:
    return {"$ref": _REFERENCE.format(name=name)}
