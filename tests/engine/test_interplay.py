"""All that a request can ask for at once, in a crowd and a pool that is too small: what each gets is what it gets alone
and without drafts.
"""

import random
from typing import Any

import pytest

from engine.api import Grammar, Output, Request, TokenLogprob
from tests.engine.conftest import MakeEngine, generate, request
from tests.tiny import VOCABULARY, make_tokenizer

GRAMMARS = (
    Grammar("regex", "[a-c]{2,9}xyz+[0-9]{0,5}"),
    Grammar("choice", '["yes it is", "yes it was", "no"]'),
    Grammar(
        "json_schema", '{"type": "object", "properties": {"abc": {"type": "integer"}}, "required": ["abc"]}'
    ),
)


def anything(rng: random.Random, name: str, common: list[int], *, greedy: bool) -> Request:
    """A request in which every parameter may be set."""
    tokens = rng.choices(range(3, VOCABULARY), k=9)
    prompt = rng.choice(
        [common[: rng.randint(1, 20)], tokens[:3] * 3 + tokens[3 : rng.randint(3, 9)], tokens[:1]]
    )
    return request(
        name,
        prompt,
        n=rng.choice([1, 1, 2, 4]),
        speculate=rng.random() < 0.9,
        temperature=0.0 if greedy else rng.choice([0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        min_p=rng.choice([0.0, 0.01]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        logit_bias={tokens[0]: 3.0} if rng.random() < 0.3 else {},
        seed=rng.getrandbits(63),
        max_tokens=rng.randint(4, 19),
        min_tokens=rng.choice([0, 0, 3]),
        ignore_eos=rng.random() < 0.5,
        stop=(make_tokenizer().decode(tokens[:1]) or "a",) if rng.random() < 0.4 else (),
        include_stop=rng.random() < 0.5,
        logprobs=rng.choice([None, 0, 3]),
        prompt_logprobs=rng.choice([None, None, None, 2]),
        grammar=rng.choice([None, None, *GRAMMARS]),
    )


def told(found: list[TokenLogprob | None] | None) -> Any:
    """Logprobs, comparable to rounding."""
    return [
        None if one is None else (one.token, one.rank, pytest.approx(one.logprob, abs=1e-3))
        for one in found or ()
    ]


def told_exactly(found: list[TokenLogprob | None] | None) -> Any:
    return [None if one is None else (one.token, one.rank, one.logprob) for one in found or ()]


def seen(output: Output, logprobs: Any) -> tuple[Any, ...]:
    """What a client sees of a text."""
    return output.tokens, output.finish, logprobs(output.logprobs), logprobs(output.prompt_logprobs)


@pytest.mark.parametrize(("kind", "greedy"), [("ngram", False), ("layer-skip", True)])
def test_nothing_that_a_request_asks_for_is_changed_by_drafts_or_company(
    make_engine: MakeEngine, kind: str, greedy: bool
) -> None:
    """A seed's text under layer skip depends on k, so there all are greedy."""
    rng = random.Random(11)
    common = rng.choices(range(3, VOCABULARY), k=20)
    requests = [anything(rng, f"r{i}", common, greedy=greedy) for i in range(32)]
    plain = make_engine("none", prefix_cache=False)
    alone = {name: output for each in requests for name, output in generate(plain, each).items()}
    tight = make_engine(kind, kv_bytes=60 << 10, max_batch_tokens=16, max_running=6)
    together = generate(tight, *requests)
    assert {name: seen(o, told_exactly) for name, o in together.items()} == {
        name: seen(o, told) for name, o in alone.items()
    }
    assert {o.finish for o in together.values()} == {"stop", "length"}
    assert sum(sum(o.report.accepted) for o in together.values()) > 20
    assert any(o.report.cached_tokens for o in together.values())
