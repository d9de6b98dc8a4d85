"""From bytes to a validated body. Whatever is not understood is refused by name, never ignored."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specd.http.bodies import Generation
from specd.http.errors import ApiError

HARMLESS: Final = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Parameters of OpenAI's that change nothing in the text."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "priority": (0,),
}
"""Parameters of OpenAI's and vLLM's that are not built, with the values that ask for nothing."""

_RULES: Final[Mapping[str, str]] = {
    "greater_than_equal": "be at least {ge}",
    "greater_than": "be greater than {gt}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "finite_number": "be finite",
    "int_type": "be a whole number",
    "int_from_float": "be a whole number",
    "float_type": "be a number",
    "bool_type": "be true or false",
    "string_type": "be a string",
    "list_type": "be a list",
    "model_type": "be an object",
    "dict_type": "be an object",
    "literal_error": "be {expected}",
    "string_too_short": "have at least {min_length} character",
    "string_too_long": "have at most {max_length} characters",
    "too_short": "have at least {min_length} entry",
    "too_long": "have at most {max_length} entries",
    "string_pattern_mismatch": "be made of letters, digits, _ . and - only",
}
"""By pydantic's type of error: what the value must."""

AnyBody = TypeVar("AnyBody", bound=Generation)


def parse(kind: type[AnyBody], body: bytes) -> AnyBody:
    """The validated body. Raises `ApiError` 400 that names the first fault."""
    raw = _object(body)
    for name, neutral in NEUTRAL.items():
        if name in raw and not _asks_for_nothing(raw.pop(name), neutral):
            message = f"{name} is not built in specd yet: leave it out"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    try:
        return kind.model_validate({key: value for key, value in raw.items() if key not in HARMLESS})
    except ValidationError as error:
        raise _bad_request(error.errors(include_url=False)[0]) from None


def _asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    # True == 1 in Python: "logprobs": 0 and "n": true are not what was meant.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _object(body: bytes) -> dict[str, Any]:
    """The body's keys but for nulls, which OpenAI's clients send for "not given"."""
    try:
        raw = _whole(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(raw, dict):
        message = f"the body must be a JSON object, not a {type(raw).__name__}"
        raise ApiError(400, message, code="invalid_json")
    return {key: value for key, value in raw.items() if value is not None}


def _whole(value: Any) -> Any:
    """JSON knows one kind of numbers: 4.0 is as good a whole number as 4."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(one) for one in value]
        case dict():
            return {key: _whole(one) for key, one in value.items()}
    return value


def _bad_request(fault: ErrorDetails) -> ApiError:
    place = [*fault["loc"], *filter(None, [fault.get("ctx", {}).get("param")])]
    param = ".".join(map(str, place)) or None
    return ApiError(400, _sentence(param, fault), param=param, code="invalid_value")


def _sentence(param: str | None, fault: ErrorDetails) -> str:
    kind = fault["type"]
    if param is None:
        return fault["msg"]
    if kind == "contradiction" and "ctx" in fault:
        return f"{param} {fault['ctx']['sentence']}"
    if kind == "extra_forbidden":
        return f"{param} is not a parameter that specd knows: remove it"
    if kind == "missing":
        return f"{param} is missing"
    if kind in _RULES:
        return f"{param} must {_RULES[kind].format(**fault.get('ctx', {}))}, not {_shown(fault['input'])}"
    return f"{param}: {fault['msg']}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
