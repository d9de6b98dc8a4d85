"""What the bodies of requests are made of: strict models, and the types of single fields."""

import json
import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_TOKEN_KEY: Final = re.compile("^(0|[1-9][0-9]{0,8})$")


class Body(BaseModel):
    """Strict: no coercion, no unknown keys, no NaN."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def fault(param: str, sentence: str) -> PydanticCustomError:
    """What a rule over several fields raises: the field that is to be changed, and a sentence that its name begins."""
    return PydanticCustomError("contradiction", "{sentence}", {"param": param, "sentence": sentence})


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise PydanticCustomError("prompt_type", "must be a string or a list of token ids")
    if not value:
        raise PydanticCustomError("prompt_empty", "must not be empty")
    if isinstance(value, list) and isinstance(value[0], str | list):
        raise PydanticCustomError(
            "many_prompts", "several prompts in one request are not built: send one each"
        )
    if isinstance(value, list) and not all(type(token) is int and token >= 0 for token in value):
        raise PydanticCustomError("prompt_tokens", "token ids must be whole numbers of at least 0")
    return value


def _flat_text(value: Any) -> Any:
    """Message content given as parts; only text parts can be served."""
    if not isinstance(value, list):
        return value
    if not all(_is_text_part(part) for part in value):
        raise PydanticCustomError(
            "parts", "may hold parts of type text only: this server takes no images or audio"
        )
    return "".join(part["text"] for part in value)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _token_key(value: Any) -> int:
    if not (isinstance(value, str) and _TOKEN_KEY.fullmatch(value)):
        raise PydanticCustomError("token_key", "must be a token id, written as a string")
    return int(value)


def _schema_text(value: Any) -> str:
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, dict):
        raise PydanticCustomError(
            "json_schema", "must be a JSON schema: an object, or a string that holds one"
        )
    return json.dumps(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _TextPart(BaseModel):
    """For the OpenAPI document."""

    type: Annotated[str, Field(pattern="^text$")]
    text: str


_ShortText = Annotated[str, Field(min_length=1, max_length=1000)]

TokenId = Annotated[int, Field(ge=0, lt=2**31)]

_Stops = Annotated[list[_ShortText], Field(max_length=16)]

Stops = Annotated[_Stops, BeforeValidator(_stop_list, json_schema_input_type=_ShortText | _Stops)]
"""One string or a list of them."""

Bias = Annotated[
    dict[Annotated[int, PlainValidator(_token_key)], Annotated[float, Field(ge=-100, le=100)]],
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": _TOKEN_KEY.pattern},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
"""By token id, written as a string: JSON has no other keys."""

Prompt = Annotated[
    str | list[int],
    BeforeValidator(
        _one_prompt,
        json_schema_input_type=Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)],
    ),
]
"""Text or tokens."""

Content = Annotated[str, BeforeValidator(_flat_text, json_schema_input_type=str | list[_TextPart])]
"""Text, or parts that are text."""

SchemaText = Annotated[str, PlainValidator(_schema_text, json_schema_input_type=str | dict[str, Any])]
"""A JSON schema, as JSON."""
