"""Which requests can run at all. A request that cannot gets a sentence, never silence."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.api import Request


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
    if request.sampling.stop and not limits.finds_stop_strings:
        yield "the model directory has no tokenizer.json, so stop strings cannot be found in its text"
