"""Texts that follow a grammar: always whole, never other than plain decoding's, and faster where there is no choice."""

import json
import re
import threading
from concurrent.futures import wait
from typing import Annotated, Literal

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.api import DraftSettings, Grammar, Output
from engine.core import Engine
from engine.draft.base import Draft
from engine.draft.constrained import fit
from engine.grammar.compiler import MAX_BYTES, GrammarCompiler, compile_grammar
from engine.grammar.errors import GrammarError
from engine.grammar.state import Spot, Standing
from engine.grammar.vocabulary import GrammarVocabulary, members
from engine.rounds import granted
from engine.sequence import text_id
from engine.verify.law import processed
from policies.base import Decision, Reason
from policies.settings import LoadSettings, PolicySettings
from tests.engine.conftest import MakeEngine, finish, generate, request
from tests.engine.orchard import with_trees
from tests.tiny import VOCABULARY, make_tokenizer

TOKENIZER = make_tokenizer()
PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
CHOICES = ["red", "reddish", "green", "deep blue", 'say "é"']


class Address(msgspec.Struct, forbid_unknown_fields=True):
    street: Annotated[str, msgspec.Meta(max_length=8)]
    number: Annotated[int, msgspec.Meta(ge=1, le=99)]


class Order(msgspec.Struct, forbid_unknown_fields=True):
    identifier: Literal["order-of-goods"]
    size: Literal["small", "large"]
    address: Address
    items: Annotated[list[Literal["apple", "pear", "plum"]], msgspec.Meta(min_length=1, max_length=4)]
    paid: bool


SCHEMA = {
    "type": "object",
    "properties": {
        "identifier": {"const": "order-of-goods"},
        "size": {"enum": ["small", "large"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 8},
                "number": {"type": "integer", "minimum": 1, "maximum": 99},
            },
            "required": ["street", "number"],
            "additionalProperties": False,
        },
        "items": {
            "type": "array",
            "items": {"enum": ["apple", "pear", "plum"]},
            "minItems": 1,
            "maxItems": 4,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["identifier", "size", "address", "items", "paid"],
    "additionalProperties": False,
}
LARK = """
start: sum "=" NUMBER
sum: term ("+" term)~0..3
term: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "regex": Grammar("regex", r"[A-Z][a-z]{2,9}(, [a-z]{1,4}){0,3}\."),
    "choice": Grammar("choice", json.dumps(CHOICES)),
    "lark": Grammar("lark", LARK),
}


def follows(name: str, text: str) -> bool:
    """By another reader than the one that made the masks."""
    match name:
        case "schema":
            return bool(msgspec.json.decode(text, type=Order))
        case "regex":
            return bool(re.fullmatch(json.loads(json.dumps(GRAMMARS[name].text)), text))
        case "choice":
            return text in CHOICES
        case _:
            left, equals, right = text.partition("=")
            return bool(equals and re.fullmatch(r"[1-9]\d{0,2}", right) and eval(left) > 0)


def text_of(output: Output) -> str:
    return TOKENIZER.decode(output.tokens, skip_special_tokens=True)


def constrained(name: str, grammar: Grammar | None = None, **changes: object):
    grammar = grammar or GRAMMARS[name]
    return request(name, PROMPT, **{"max_tokens": 200, "ignore_eos": False, "grammar": grammar} | changes)


def one(character: str) -> int:
    (token,) = TOKENIZER.encode(character).ids
    return token


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(TOKENIZER, VOCABULARY, [1])


@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_every_text_follows_its_grammar_in_a_mixed_batch(
    make_engine: MakeEngine, kind: str, temperature: float
) -> None:
    engine = make_engine(kind, k=8, max_batch_tokens=24)
    free = generate(make_engine(kind, k=8), request("free", PROMPT))["free"].tokens
    outputs = generate(
        engine,
        request("free", PROMPT),
        *(constrained(name, temperature=temperature, seed=7) for name in GRAMMARS),
    )
    for name in GRAMMARS:
        assert outputs[name].finish == "stop", (name, outputs[name].error)
        assert follows(name, text_of(outputs[name])), (name, text_of(outputs[name]))
    assert outputs["free"].tokens == free, "who has no grammar notices nothing"


class ByHand:
    """A grammar's state in which 5 is never allowed, and 9 ends the text."""

    def allows(self, path: list[int], token: int) -> bool:
        return token != 5 and 9 not in path

    def spot(self, path: list[int]) -> Spot:
        return Spot(Standing.ENDED if path[-1] == 9 else Standing.OPEN, None)


def test_each_branch_of_a_draft_is_cut_where_the_grammar_does_not_let_it_go_on() -> None:
    """A certain tree loses the tokens themselves; of a drawn one they stay, and what hangs at them goes."""
    certain = Draft([3, 5, 4, 9, 6, 7], parents=[-1, -1, 0, 0, 1, 3])
    assert fit(certain, ByHand()) == Draft([3, 4], parents=[-1, 0])
    drawn = certain._replace(probs=torch.arange(6.0)[:, None])
    kept = fit(drawn, ByHand())
    assert (kept.tokens, kept.parents) == ([3, 5, 4, 9], [-1, -1, 0, 0])
    assert kept.probs[:, 0].tolist() == [0, 1, 2, 3]
    assert fit(Draft([3, 5, 4]), ByHand()) == Draft([3])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_change_no_token(make_engine: MakeEngine, temperature: float) -> None:
    """The text that comes, among branches that the grammar forbids or allows."""
    requests = [constrained(name, temperature=temperature, seed=3) for name in GRAMMARS]
    plain = generate(make_engine("none"), *requests)
    drafted, _ = with_trees(make_engine("none", k=8), plain, *requests)
    assert {n: o.tokens for n, o in drafted.items()} == {n: o.tokens for n, o in plain.items()}
    assert sum(sum(o.report.accepted) for o in drafted.values()) > 20


@pytest.mark.parametrize(("kind", "temperature"), [("ngram", 0.0), ("layer-skip", 0.0), ("ngram", 1.0)])
@pytest.mark.parametrize("k", [1, 8])
def test_speculation_changes_no_token(make_engine: MakeEngine, kind: str, temperature: float, k: int) -> None:
    """Greedy texts, and those of a seed where drafts are certain, ended by the grammar, the length or a stop string."""
    requests = [
        *(constrained(name, temperature=temperature, seed=3) for name in GRAMMARS),
        constrained("short", GRAMMARS["schema"], temperature=temperature, max_tokens=70),
        constrained("cut", GRAMMARS["schema"], temperature=temperature, stop=("addr",)),
        constrained("onward", GRAMMARS["regex"], temperature=temperature, ignore_eos=True),
        constrained("object", Grammar("json_object"), temperature=temperature, max_tokens=40),
    ]
    drafted = generate(make_engine(kind, k=k), *requests)
    for each in requests:
        plain = generate(make_engine("none"), msgspec.structs.replace(each, speculate=False))[each.id]
        assert plain.report.drafted == 0
        assert drafted[each.id].tokens == plain.tokens, each.id
        assert drafted[each.id].finish == plain.finish, each.id
    assert sum(sum(output.report.accepted) for output in drafted.values()) > 0


DIGITS = ["17", "18", "2", "371", "372", "38"]


def exact_shares(tiny_dir, temperature: float) -> np.ndarray:
    """Of each of DIGITS, by the chain rule over transformers' own logits; a byte is a token here."""
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    shares = []
    for text in DIGITS:
        share = 1.0
        for at in range(len(text)):
            may_follow = {
                choice[at] for choice in DIGITS if choice.startswith(text[:at]) and len(choice) > at
            }
            ids = {c: TOKENIZER.encode(c).ids[0] for c in may_follow}
            with torch.inference_mode():
                row = model(torch.tensor([PROMPT + TOKENIZER.encode(text[:at]).ids])).logits[0, -1]
            masked = np.full(len(row), -np.inf)
            masked[list(ids.values())] = row[list(ids.values())].double().numpy()
            share *= processed(masked, temperature)[ids[text[at]]]
        shares.append(share)
    return np.array(shares)


@pytest.mark.parametrize("kind", ["ngram", "layer-skip"])
def test_the_masked_law_is_the_targets(make_engine: MakeEngine, tiny_dir, kind: str) -> None:
    """Shares of whole texts over 500 seeds against the target's law under the masks, each by its own prefix."""
    exact = exact_shares(tiny_dir, 2.0)
    assert (exact > 0.02).sum() >= 3, "a law without spread would show nothing"
    grammar = Grammar("choice", json.dumps(DIGITS))
    engine = make_engine(kind, k=2)
    outputs = generate(
        engine, *(constrained(str(s), grammar, temperature=2.0, seed=s, max_tokens=8) for s in range(500))
    )
    counts = np.zeros(len(DIGITS))
    for output in outputs.values():
        counts[DIGITS.index(text_of(output))] += 1
    assert np.abs(counts / 500 - exact).max() < 4.5 * np.sqrt(0.25 / 500)
    if kind == "layer-skip":
        assert any(output.report.proposers.get(kind) for output in outputs.values())


def forced_rounds(engine: Engine) -> tuple[list, Output]:
    rounds, last = [], None
    while engine.has_work:
        report = engine.step()
        rounds += report.rounds
        last = report.outputs[-1] if report.outputs else last
    return rounds, last


def test_forced_tokens_are_free_drafts_even_while_load_has_drafting_off(make_engine: MakeEngine) -> None:
    """They are all kept, a text needs a fraction of its rounds, and neither policy nor alarm learns from them."""
    engine = make_engine("ngram")
    off = LoadSettings(table=((1, 0),), off_above=0, resume_at=0)
    engine.configure(
        PolicySettings(kind="static", static_k=3, k_max=16, load=off),
        DraftSettings(ngram_min=1, ngram_max=3),
    )
    engine.submit(constrained("schema"))
    rounds, last = forced_rounds(engine)
    forced = [r for r in rounds if r.reason == Reason.FORCED]
    assert forced
    assert all(r.proposer == "grammar" and 0 < r.accepted == r.examined == r.drafted <= 16 for r in forced)
    assert not any(r.is_evidence for r in forced)
    assert {r.reason for r in rounds} - {Reason.FORCED} <= {Reason.LOAD_OFF, Reason.PROBE}
    assert last.report.proposers["grammar"] == len(forced)
    assert last.report.rounds < last.report.tokens / 2
    assert not [c for c in engine.policy.class_acceptance() if c.proposer == "grammar"]


def test_a_forced_draft_that_the_kv_pool_shortens_stays_forced() -> None:
    decision = Decision(5, Reason.FORCED, "forced")
    assert granted(decision, 3).reason is Reason.FORCED
    assert granted(decision, 0).reason is Reason.NO_ROOM


def test_each_of_several_texts_follows_the_grammar_by_itself(make_engine: MakeEngine) -> None:
    """And a pool so small that texts are preempted and computed anew changes none of them."""
    short = {"temperature": 1.0, "max_tokens": 40}
    requests = [constrained("regex", n=4, **short), constrained("lark", **short)]
    texts = {name: text_of(output) for name, output in generate(make_engine(), *requests).items()}
    assert len(texts) == 5
    assert len(set(texts.values())) > 2
    assert all(follows(name.partition("#")[0], text) for name, text in texts.items())
    engine = make_engine(kv_bytes=48 << 10, prefix_cache=False)
    for each in requests:
        engine.submit(each)
    wait(
        [compiled for _, compiled in engine._entrance._grammars._waiting.values()]
    )  # so that all run together
    found: dict[str, list[int]] = {}
    preempted = 0
    while engine.has_work:
        report = engine.step()
        preempted += report.preempted
        for output in report.outputs:
            found.setdefault(text_id(output.id, output.index), []).extend(output.tokens)
    assert preempted > 0
    assert {name: TOKENIZER.decode(tokens) for name, tokens in found.items()} == texts


def test_the_grammars_end_comes_before_min_tokens_and_its_start_does_not(make_engine: MakeEngine) -> None:
    """An end that the grammar allows waits for min_tokens; one that it demands does not."""
    grammar = Grammar("regex", "1{1,12}")
    for wanted, shortest in ((8, 8), (30, 12)):
        for kind in ("none", "layer-skip"):
            seeds = [
                constrained(str(s), grammar, temperature=2.0, seed=s, min_tokens=wanted) for s in range(8)
            ]
            outputs = generate(make_engine(kind), *seeds)
            assert all(output.finish == "stop" for output in outputs.values())
            assert min(len(text_of(output)) for output in outputs.values()) >= shortest


@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
@pytest.mark.parametrize("banned", ["1", "78"])
def test_a_grammar_and_limits_that_exclude_each_other_end_with_a_sentence(
    make_engine: MakeEngine, kind: str, banned: str
) -> None:
    """At once, and where a draft leads there."""
    grammar = Grammar("choice", '["17", "18"]')
    for temperature in (0.0, 1.0):
        limits = {"temperature": temperature, "banned_tokens": tuple(one(digit) for digit in banned)}
        output = generate(make_engine(kind), constrained("a", grammar, **limits))["a"]
        assert output.finish == "error"
        assert "exclude each other" in output.error


@pytest.mark.parametrize("changes", [{"speculate": False}, {"k": 0}])
def test_a_request_that_asks_for_plain_decoding_gets_it(make_engine: MakeEngine, changes: dict) -> None:
    report = generate(make_engine(), constrained("schema", **changes))["schema"].report
    assert report.k_histogram.keys() == {0}
    assert report.proposers == {}


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        (Grammar("regex", "a("), "the regular expression cannot be followed: .*unclosed"),
        (Grammar("json_schema", "{"), "the JSON schema is not JSON"),
        (Grammar("json_schema", '{"type": "objekt"}'), "the JSON schema cannot be followed: .*objekt"),
        (Grammar("lark", "start: missing"), 'the Lark grammar cannot be followed: .*unknown name: "missing"'),
        (Grammar("choice", "[]"), "the choices must be a list of at least one string"),
        (Grammar("choice", '["a", 1]'), "the choices must be a list of at least one string"),
        (Grammar("choice", '[""]'), "the list of choices allows nothing but the empty text"),
        (Grammar("lark", "start: /a/ & /b/"), "the Lark grammar"),
        (Grammar("regex", "a" * (MAX_BYTES + 1)), "make it smaller"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_with_the_reason(
    make_engine: MakeEngine, grammar: Grammar, sentence: str
) -> None:
    outputs = generate(make_engine(), constrained("bad", grammar), request("good", PROMPT))
    assert outputs["bad"].finish == "error"
    assert re.search(sentence, outputs["bad"].error), outputs["bad"].error
    assert "\n" not in outputs["bad"].error
    assert outputs["good"].finish == "length"


def test_a_model_without_a_tokenizer_refuses_grammars_only(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine._entrance._grammars = GrammarCompiler(lambda: GrammarVocabulary(None, VOCABULARY, [1]))
    outputs = generate(engine, constrained("bad", GRAMMARS["regex"]), request("good", PROMPT))
    assert "has no tokenizer.json" in outputs["bad"].error
    assert outputs["good"].finish == "length"


def test_chains_of_definitions_do_not_overflow_the_stack() -> None:
    """As long as the limit on the text allows; on a usual stack the process would end."""
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(2000)}
    schema = {"$ref": "#/$defs/a0", "$defs": links | {"a2000": {"type": "string"}}}
    grammar = Grammar("json_schema", json.dumps(schema))
    compiler = GrammarCompiler(lambda: GrammarVocabulary(TOKENIZER, VOCABULARY, [1]))
    compiler.add(constrained("deep", grammar), grammar)
    ((_, outcome),) = compiler.finished(60)
    assert not isinstance(outcome, GrammarError)


def test_others_run_while_a_grammar_is_compiled_and_a_cancel_finds_it_there(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that compiles is held up: nobody waits for it but the requests that need it."""
    go_on = threading.Event()

    def slow(*arguments):
        assert go_on.wait(60)
        return compile_grammar(*arguments)

    monkeypatch.setattr("engine.grammar.compiler.compile_grammar", slow)
    engine = make_engine()
    engine.submit(constrained("left", GRAMMARS["regex"]))
    engine.submit(constrained("stays", GRAMMARS["regex"]))
    engine.submit(request("other", PROMPT))
    ended = {}
    while "other" not in ended:
        report = engine.step()
        assert report.waiting == 2
        ended |= {output.id: output for output in report.outputs if output.finish}
    engine.cancel("left")
    go_on.set()
    outputs = finish(engine)
    assert (outputs["left"].finish, outputs["left"].report.tokens) == ("cancelled", 0)
    assert follows("regex", text_of(outputs["stays"]))


def test_a_cancel_midway_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine("layer-skip")
    engine.submit(constrained("a", GRAMMARS["schema"], temperature=1.0))
    while not engine.step().rounds:
        pass
    engine.cancel("a")
    assert finish(engine)["a"].finish == "cancelled"
    assert follows("schema", text_of(generate(engine, constrained("a", GRAMMARS["schema"]))["a"]))


def test_where_the_grammar_leads_nowhere_the_request_ends_with_a_sentence(make_engine: MakeEngine) -> None:
    grammar = Grammar("lark", 'start: "1" X\nX: /2/ & /3/')
    outputs = generate(make_engine(), constrained("stuck", grammar), request("good", PROMPT))
    assert outputs["stuck"].finish == "error"
    assert "its grammar allows no token" in outputs["stuck"].error
    assert text_of(outputs["stuck"]) == "1"
    assert outputs["good"].finish == "length"


def test_ignore_eos_ends_the_text_only_where_the_grammar_leaves_nothing_else(make_engine: MakeEngine) -> None:
    grammar = Grammar("regex", "1{1,12}")
    for kind in ("none", "layer-skip"):
        output = generate(make_engine(kind), constrained("a", grammar, temperature=1.0, ignore_eos=True))["a"]
        assert (text_of(output), output.finish) == ("1" * 12, "stop")


def test_a_state_is_a_function_of_text_and_path(vocabulary: GrammarVocabulary) -> None:
    """Along the branches of a tree, visited in any order, a spot is that of a new state whose text is the path."""
    compiled = compile_grammar(GRAMMARS["choice"], vocabulary)
    state = compiled.state(ignore_eos=False)
    ids = TOKENIZER.encode("reddish").ids
    paths = [tuple(ids[:j]) for j in range(len(ids) + 1)] + [tuple(TOKENIZER.encode("gre").ids), (1,)]
    for path in np.random.default_rng(0).permutation(np.array(paths * 2, dtype=object)):
        fresh = compiled.state(ignore_eos=False)
        found = state.spot(path)
        if found.standing is Standing.OPEN:
            fresh.commit(path)
            assert torch.equal(found.allowed, fresh.spot().allowed)
            assert found.only == fresh.spot().only
        else:
            assert path in {tuple(ids), (1,)}
        state._spots.clear()


def test_what_the_tokenizer_does_not_know_is_never_allowed() -> None:
    """Rows of logits are wider than the vocabulary in many models, and in some narrower."""
    anything = Grammar("regex", "(.|\n)*")
    for size in (VOCABULARY + 77, 200):
        state = compile_grammar(anything, GrammarVocabulary(TOKENIZER, size, [1])).state(ignore_eos=False)
        allowed = members(state.spot().allowed.numpy(), 10_000)
        assert len(allowed) > 100
        assert max(allowed) < min(size, TOKENIZER.get_vocab_size())
        assert 1 in allowed
        assert not {0, 2} & set(allowed), "special tokens are no text"


def test_a_matcher_that_meets_a_limit_on_a_path_serves_the_text_on(vocabulary: GrammarVocabulary) -> None:
    state = compile_grammar(GRAMMARS["regex"], vocabulary).state(ignore_eos=False)
    first = members(state.spot().allowed.numpy(), 1)
    state.commit(first)
    before = state.spot().allowed
    state._spots.clear()
    state._matcher.rollback(5)  # more than it has consumed: an error that it does not leave
    assert state.spot().standing is Standing.STUCK
    state._spots.clear()
    assert torch.equal(state.spot().allowed, before)


def test_a_law_draft_is_cut_only_behind_the_token_that_ends_it(make_engine: MakeEngine) -> None:
    """Its own last token may be what ends the text: cutting that away by its value would bend the law."""
    grammar = Grammar("choice", json.dumps(["1", "22"]))
    engine = make_engine("layer-skip", k=4, skip=())
    outputs = generate(engine, *(constrained(str(s), grammar, temperature=2.0, seed=s) for s in range(40)))
    ones = [output for output in outputs.values() if text_of(output) == "1"]
    assert {text_of(output) for output in outputs.values()} <= {"1", "22"}
    assert all(output.finish == "stop" for output in outputs.values())
    assert all(output.report.tokens == 1 for output in ones)
