"""From a body to the engine's sampling parameters."""

import secrets
from typing import Final

from engine.api import SamplingParams
from specd.http.bodies import Generation
from specd.http.encode import Prompt
from specd.http.errors import ApiError
from specd.http.prompt import PromptEncoder

_SEEDS: Final = 1 << 63


def sampling(body: Generation, prompt: Prompt, max_tokens: int) -> SamplingParams:
    """The names differ: the engine has its own, the body those of OpenAI and vLLM."""
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        min_p=body.min_p,
        top_k=max(body.top_k, 0),
        top_p=body.top_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        allowed_tokens=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        banned_tokens=tuple(body.banned_token_ids),
        seed=secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS,
        seeded=body.seed is not None,
        stop=(*body.stop, *prompt.stop),
        stop_tokens=tuple(body.stop_token_ids),
        include_stop=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        logprobs=body.likeliest,
        prompt_logprobs=body.prompt_scores,
        grammar=prompt.grammar,
    )


def check_tokens(body: Generation, encoder: PromptEncoder) -> None:
    """Raises `ApiError` for a token id that does not exist."""
    encoder.check(body.logit_bias, "logit_bias")
    encoder.check(body.allowed_token_ids or (), "allowed_token_ids")
    encoder.check(body.banned_token_ids, "banned_token_ids")
    encoder.check(body.stop_token_ids, "stop_token_ids")


def token_limit(prompt: int, asked: int | None, *, context: int, default: int) -> int:
    """How many tokens may be generated after a prompt that fits. Raises `ApiError` when they do not fit."""
    left = context - prompt
    if prompt == 0:
        raise ApiError(400, "the prompt has no tokens: write something", param="prompt", code="invalid_value")
    if asked is not None and asked > left:
        message = (
            f"max_tokens is {asked}, but after a prompt of {prompt} tokens"
            f" a context of {context} has room for {left}: lower it or shorten the prompt"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    return min(default, left) if asked is None else max(asked, 1)
