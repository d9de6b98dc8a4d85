"""Which requests can run at all. A request that cannot gets a sentence, never silence."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.api import Grammar, Request, SamplingParams
from engine.grammar.compiler import MAX_BYTES

MOST_LOGPROBS = 20
_FACTORS = (0.01, 100)  # beyond, logits could leave what float32 holds


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can hold."""

    max_context: int  # tokens of prompt and output together
    kv_positions: int
    max_running: int  # texts
    vocabulary: int
    finds_stop_strings: bool  # needs the model's tokenizer
    judges_prompts: bool = True  # an encoder says nothing of the prompt's tokens


def refusal(request: Request, limits: Limits) -> str | None:
    """Why a request cannot run, or None."""
    return next(_faults(request, limits), None)


def _faults(request: Request, limits: Limits) -> Iterator[str]:
    prompt, wanted = len(request.prompt), request.sampling.max_tokens
    if prompt == 0:
        yield "the prompt is empty: it needs at least one token"
    if wanted < 1:
        yield f"max_tokens is {wanted}: it must be at least 1"
    if prompt + wanted > limits.max_context:
        yield (
            f"the prompt has {prompt} tokens and max_tokens is {wanted}, together more than the context of "
            f"{limits.max_context}: shorten one of them"
        )
    if not all(0 <= token < limits.vocabulary for token in request.prompt):
        yield f"the prompt has a token outside the vocabulary of {limits.vocabulary}"
    if prompt + wanted - 1 > limits.kv_positions:
        yield (
            f"the request may need {prompt + wanted - 1} tokens of KV memory and the pool holds "
            f"{limits.kv_positions}: lower max_tokens or raise engine.kv_mib"
        )
    if request.n < 1:
        yield f"n is {request.n}: it must be at least 1"
    if request.n > limits.max_running:
        yield (
            f"n is {request.n}, but no more than {limits.max_running} texts can run together: lower n or raise "
            "engine.max_running"
        )
    yield from _sampling_faults(request.sampling)
    yield from _edit_faults(request.sampling)
    yield from _grammar_faults(request.sampling.grammar)
    yield from _vocabulary_faults(request.sampling, limits.vocabulary)
    yield from _model_faults(request.sampling, limits)
    if request.k is not None and request.k < 0:
        yield f"k is {request.k}: it must be at least 0"


def _model_faults(sampling: SamplingParams, limits: Limits) -> Iterator[str]:
    """What this model cannot do."""
    if sampling.prompt_logprobs is not None and not limits.judges_prompts:
        yield (
            "prompt_logprobs is asked for, but this model's prompts are read by an encoder, which predicts none of "
            "their tokens: leave it out, and echo with logprobs as well"
        )
    if sampling.stop and not limits.finds_stop_strings:
        yield "the model directory has no tokenizer.json, so stop strings cannot be found in its text"


def _grammar_faults(grammar: Grammar | None) -> Iterator[str]:
    """What is seen without compiling it."""
    size = 0 if grammar is None else len(grammar.text.encode())
    if size > MAX_BYTES:
        yield f"the grammar has {size} bytes and at most {MAX_BYTES} are read: make it smaller"


def _sampling_faults(sampling: SamplingParams) -> Iterator[str]:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        yield f"temperature is {sampling.temperature}: it must be a number that is at least 0"
    if not 0 < sampling.top_p <= 1:
        yield f"top_p is {sampling.top_p}: it must be above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        yield f"min_p is {sampling.min_p}: it must be at least 0 and at most 1"
    if sampling.top_k < 0:
        yield f"top_k is {sampling.top_k}: it must be at least 0, and 0 keeps all tokens"
    if not 0 <= sampling.seed < 2**64:
        yield f"seed is {sampling.seed}: it must fit 64 bits without a sign"
    if "" in sampling.stop:
        yield "a stop string is empty: every text would end at once"
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        yield (
            f"min_tokens is {sampling.min_tokens}: it must be at least 0 and at most max_tokens, "
            f"which is {sampling.max_tokens}"
        )
    for name, asked in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if asked is not None and not 0 <= asked <= MOST_LOGPROBS:
            yield f"{name} is {asked}: it must be at least 0 and at most {MOST_LOGPROBS}"


def _edit_faults(sampling: SamplingParams) -> Iterator[str]:
    if not _FACTORS[0] <= sampling.repetition_penalty <= _FACTORS[1]:
        yield (
            f"repetition_penalty is {sampling.repetition_penalty}: it must be at least {_FACTORS[0]} and at most "
            f"{_FACTORS[1]}, and 1 changes nothing"
        )
    for name, penalty in (
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ):
        if not -2 <= penalty <= 2:
            yield f"{name} is {penalty}: it must be at least -2 and at most 2"
    for token, bias in sampling.logit_bias.items():
        if not (-100 <= bias <= 100 or bias == -math.inf):
            yield (
                f"logit_bias of token {token} is {bias}: it must be at least -100 and at most 100, "
                "or -inf to ban the token"
            )
    if sampling.allowed_tokens is not None and not set(sampling.allowed_tokens) - _never(sampling):
        yield "allowed_tokens leaves no token to draw: name one that is neither banned nor has a bias of -inf"


def _never(sampling: SamplingParams) -> set[int]:
    biased = (token for token, bias in sampling.logit_bias.items() if bias == -math.inf)
    return {*sampling.banned_tokens, *biased}


def _vocabulary_faults(sampling: SamplingParams, vocabulary: int) -> Iterator[str]:
    for name, tokens in (
        ("logit_bias", sampling.logit_bias),
        ("allowed_tokens", sampling.allowed_tokens or ()),
        ("banned_tokens", sampling.banned_tokens),
        ("stop_tokens", sampling.stop_tokens),
    ):
        outside = [token for token in tokens if not 0 <= token < vocabulary]
        if outside:
            yield f"{name} has token {outside[0]}, which is outside the vocabulary of {vocabulary}"
    if len(_never(sampling)) >= vocabulary:
        yield "banned_tokens and logit_bias leave no token to draw"
