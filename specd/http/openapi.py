"""The OpenAPI document of the inference listener: request bodies from the models that parse them, answers by hand."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from specd.http.bodies import ChatBody, CompletionBody
from specd.http.parse import HARMLESS, NEUTRAL

Schema = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/"
_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_FINISH: Final[Schema] = {"enum": ["stop", "length", "tool_calls"]}


def document(version: str) -> Schema:
    """For `GET /openapi.json`."""
    schemas: dict[str, Schema] = dict(_ANSWERS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "specd",
            "version": version,
            "description": "OpenAI's API, and what specd adds to it.",
        },
        "paths": {
            "/v1/completions": _post("Complete a text", CompletionBody, "Completion", schemas),
            "/v1/chat/completions": _post("Answer a chat", ChatBody, "ChatCompletion", schemas),
            "/v1/models": _get("The model that is served", "Models", keyed=True),
            "/health": _get("Whether the process is alive", "Status", keyed=False),
            "/ready": _get("Whether requests are served", "Status", keyed=False, refusals={503: "Not now"}),
            "/openapi.json": _get("This document", "Document", keyed=False),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _get(summary: str, answer: str, *, keyed: bool, refusals: Mapping[int, str] | None = None) -> Schema:
    errors = ({401: "No valid key"} if keyed else {}) | dict(refusals or {})
    content = {"application/json": {"schema": _reference(answer)}}
    return {
        "get": {
            "summary": summary,
            **({"security": [{}, {"key": []}]} if keyed else {}),
            "responses": {"200": {"description": summary, "content": content}, **_errors(errors)},
        }
    }


def _post(summary: str, body: type[BaseModel], answer: str, schemas: dict[str, Schema]) -> Schema:
    content = {
        "application/json": {"schema": _reference(answer)},
        "text/event-stream": {"schema": _reference("Event")},
    }
    return {
        "post": {
            "summary": summary,
            "security": [{}, {"key": []}],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _reference(_add_body(body, schemas))}},
            },
            "responses": {"200": {"description": answer, "content": content}, **_errors(_REFUSALS)},
        }
    }


_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request cannot be understood, or cannot run here; the message says why",
    401: "No valid key",
    403: "A page of another origin, or under another name, has no business here",
    404: "Another model is served here",
    408: "Not answered whole within the client's own `specd.timeout`, or the client reads too slowly",
    413: "The body is too large",
    429: "The queue is full, or a limit of the tenant's or the key's is reached; Retry-After says when to come back",
    431: "The headers are too large",
    500: "A fault of the server's",
    503: "Not now: the engine is starting again, or the server is shutting down",
    504: "Not answered whole within the server's `request_seconds`",
}


def _errors(refusals: Mapping[int, str]) -> Schema:
    content = {"application/json": {"schema": _reference("Error")}}
    return {str(status): {"description": why, "content": content} for status, why in refusals.items()}


def _add_body(body: type[BaseModel], schemas: dict[str, Schema]) -> str:
    """The name under which the body's schema was put among the others."""
    schema = body.model_json_schema(ref_template=_REFERENCE + "{model}")
    schemas |= schema.pop("$defs", {})
    required = schema.get("required", [])
    known = {name: one if name in required else _nullable(one) for name, one in schema["properties"].items()}
    accepted = {name: {"enum": [*values, None]} for name, values in NEUTRAL.items()}
    ignored: dict[str, Schema] = {name: {} for name in sorted(HARMLESS)}
    # Whatever is null counts as not given, even under a name that nobody knows.
    schemas[body.__name__] = schema | {
        "properties": ignored | accepted | known,
        "additionalProperties": _NULL,
    }
    return body.__name__


def _nullable(schema: Schema) -> Schema:
    if _NULL in schema.get("anyOf", []):
        return schema
    default = {"default": schema.pop("default")} if "default" in schema else {}
    return {"anyOf": [schema, _NULL], **default}


def _reference(name: str) -> Schema:
    return {"$ref": _REFERENCE + name}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Closed: what an answer has besides is a fault of this document."""
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


_NUMBER: Final[Schema] = {"type": "number"}
_LOGPROB: Final = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list({**_COUNT, "maximum": 255})}
_PROMPT_LOGPROBS: Final = _list(
    _or_null(
        {
            "type": "object",
            "additionalProperties": _object({"logprob": _NUMBER, "rank": _COUNT, "decoded_token": _TEXT}),
        }
    )
)
_HEAD: Final = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": _reference("Usage")}
_CHOICE: Final = {"index": _COUNT, "finish_reason": _FINISH}
_REPORTED: Final = {"specd": _reference("Report")}

ERROR: Final[Schema] = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                "param": _or_null(_TEXT),
                "code": _or_null(_TEXT),
            }
        )
    }
)
"""What every refusal looks like, on both listeners."""

_ANSWERS: Final[Mapping[str, Schema]] = {
    "Error": ERROR,
    "Usage": _object(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        }
    ),
    "Report": _object(
        {
            "rounds": _COUNT,
            "drafted": _COUNT,
            "examined": _list(_COUNT),
            "accepted": _list(_COUNT),
            "k_histogram": {"type": "object", "additionalProperties": _COUNT},
            "proposers": {"type": "object", "additionalProperties": _COUNT},
            "target_revision": _TEXT,
            "draft_revision": _TEXT,
        },
        {"not_speculated": _TEXT},
    ),
    "Completion": _object(
        {
            **_HEAD,
            "object": {"const": "text_completion"},
            "choices": _list(
                _object(
                    {**_CHOICE, "text": _TEXT, "logprobs": _or_null(_reference("CompletionLogprobs"))},
                    {**_REPORTED, "prompt_logprobs": _PROMPT_LOGPROBS},
                )
            ),
        },
        _REPORTED,
    ),
    "CompletionLogprobs": _object(
        {
            "tokens": _list(_TEXT),
            "token_logprobs": _list(_or_null(_NUMBER)),
            "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": _NUMBER})),
            "text_offset": _list(_COUNT),
        }
    ),
    "ChatCompletion": _object(
        {
            **_HEAD,
            "object": {"const": "chat.completion"},
            "choices": _list(
                _object(
                    {
                        **_CHOICE,
                        "message": _reference("Answer"),
                        "logprobs": _or_null(_reference("ChatLogprobs")),
                    },
                    _REPORTED,
                )
            ),
        },
        {**_REPORTED, "prompt_logprobs": _PROMPT_LOGPROBS},
    ),
    "ChatLogprobs": _object(
        {
            "content": _list(_object({**_LOGPROB, "top_logprobs": _list(_object(_LOGPROB))})),
            "refusal": _NULL,
        }
    ),
    "Answer": _object(
        {"role": {"const": "assistant"}, "content": _or_null(_TEXT), "refusal": _NULL},
        {
            "tool_calls": _list(
                _object(
                    {
                        "id": _TEXT,
                        "type": {"const": "function"},
                        "function": _object({"name": _TEXT, "arguments": _TEXT}),
                    }
                )
            )
        },
    ),
    "Models": _object(
        {
            "object": {"const": "list"},
            "data": _list(
                _object(
                    {
                        "id": _TEXT,
                        "object": {"const": "model"},
                        "created": _COUNT,
                        "owned_by": {"const": "specd"},
                    }
                )
            ),
        }
    ),
    "Event": {
        "description": "Chunks of the answer or an error, as JSON; the last one is [DONE]",
        "type": "object",
        "required": ["data"],
        "properties": {"data": _TEXT},
    },
    "Status": _object({"status": _TEXT}),
    "Document": {"type": "object"},
}
