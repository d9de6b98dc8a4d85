"""Which requests can run at all. A request that cannot gets a sentence, never silence."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.api import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can hold."""

    max_context: int  # tokens of prompt and output together
    kv_positions: int
    vocabulary: int
    finds_stop_strings: bool  # needs the model's tokenizer


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
    yield from _sampling_faults(request.sampling)
    if request.k is not None and request.k < 0:
        yield f"k is {request.k}: it must be at least 0"
    if request.sampling.stop and not limits.finds_stop_strings:
        yield "the model directory has no tokenizer.json, so stop strings cannot be found in its text"


def _sampling_faults(sampling: SamplingParams) -> Iterator[str]:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        yield f"temperature is {sampling.temperature}: it must be a number that is at least 0"
    if not 0 < sampling.top_p <= 1:
        yield f"top_p is {sampling.top_p}: it must be above 0 and at most 1"
    if sampling.top_k < 0:
        yield f"top_k is {sampling.top_k}: it must be at least 0, and 0 keeps all tokens"
    if not 0 <= sampling.seed < 2**64:
        yield f"seed is {sampling.seed}: it must fit 64 bits without a sign"
    if "" in sampling.stop:
        yield "a stop string is empty: every text would end at once"
