"""Several proposers in one engine: who drafted is told of each round, and what one text said serves the next."""

from collections import Counter

from msgspec import structs

from engine.api import DraftSettings, Grammar, Output, Round
from engine.core import Engine
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, finish, generate, request
from tests.engine.test_lossless import PROMPTS

POLICY = PolicySettings(kind="static", static_k=3, k_max=16, load=UNCAPPED)
KINDS = ("suffix", "layer-skip")


def played(engine: Engine) -> tuple[list[Round], dict[str, Output]]:
    rounds, ended = [], {}
    while engine.has_work:
        report = engine.step()
        rounds += report.rounds
        ended |= {output.id: output for output in report.outputs if output.report}
    return rounds, ended


def test_a_report_names_who_drafted_in_each_round_and_rounds_say_the_same(make_engine: MakeEngine) -> None:
    """Suffix decoding where it has something, layer skip where not, forced tokens where a grammar leaves no choice."""
    engine = make_engine("suffix")
    engine.configure(POLICY, DraftSettings(kinds=KINDS))
    for name in ("copy", "random"):
        engine.submit(request(name, PROMPTS[name], max_tokens=40))
    grammar = Grammar("regex", "(yes|no), the target decides(!|\\?){1,12}")
    engine.submit(request("forced", PROMPTS["copy"], grammar=grammar, ignore_eos=False, max_tokens=40))
    rounds, ended = played(engine)
    seen = Counter[str]()
    for name, output in ended.items():
        mine = [each for each in rounds if each.request == name]
        drafted = [each for each in mine if each.drafted]
        seen += Counter(each.proposer for each in drafted)
        assert output.report.proposers == Counter(each.proposer for each in drafted)
        assert output.report.rounds == len(mine)
        assert output.report.drafted == sum(each.drafted for each in drafted)
        assert sum(output.report.examined) == sum(each.examined for each in mine)
        assert sum(output.report.accepted) == sum(each.accepted for each in mine)
        assert {each.proposer for each in mine if not each.k} <= {"none"}
    assert seen.keys() == {*KINDS, "grammar"}


def test_texts_of_several_proposers_are_those_of_plain_decoding(make_engine: MakeEngine) -> None:
    asked = [request(name, prompt) for name, prompt in PROMPTS.items()]
    engine = make_engine("suffix")
    engine.configure(POLICY, DraftSettings(kinds=KINDS))
    plain = generate(make_engine("none"), *asked)
    assert {n: o.tokens for n, o in generate(engine, *asked).items()} == {
        n: o.tokens for n, o in plain.items()
    }


def test_what_was_said_before_speeds_up_the_same_tenant_alone_and_outlives_a_reload(
    make_engine: MakeEngine,
) -> None:
    """A question asked again has its answer drafted; asked by another tenant, no more of it than the first time."""
    engine = make_engine("suffix", k=8)
    accepted = {}
    for name, tenant in (("first", "a"), ("again", "a"), ("other", "b"), ("reloaded", "a")):
        if name == "reloaded":
            settings = PolicySettings(kind="static", static_k=8, load=UNCAPPED)
            engine.configure(settings, DraftSettings(kinds=("suffix",), ngram_min=1, ngram_max=4))
        asked = request(name, PROMPTS["random"], temperature=1.5, seed=1)  # no loop to be looked up in
        engine.submit(structs.replace(asked, tenant=tenant))
        accepted[name] = sum(finish(engine)[name].report.accepted)
    assert accepted["first"] == accepted["other"] < 4
    assert accepted["again"] == accepted["reloaded"] > 16


def test_a_request_can_name_who_drafts_for_it(make_engine: MakeEngine) -> None:
    """Test that nobody else drafts for it, that others are left to the policy, and that one who is not there drafts
    nothing."""
    engine = make_engine("suffix")
    engine.configure(POLICY, DraftSettings(kinds=KINDS))
    for name, proposer in (("skip", "layer-skip"), ("free", None), ("nobody", "mtp")):
        asked = request(name, PROMPTS["copy"], max_tokens=30)
        engine.submit(structs.replace(asked, k=2, proposer=proposer))
    _, ended = played(engine)
    assert ended["skip"].report.proposers.keys() == {"layer-skip"}
    assert ended["free"].report.drafted > 0
    assert ended["nobody"].report.drafted == 0
    assert ended["skip"].report.tokens == ended["nobody"].report.tokens == 30


def test_proposers_can_be_silenced_and_lookup_take_over(make_engine: MakeEngine) -> None:
    """Test that an engine goes on drafting with fewer than it was started with, with lookup that it was not started
    with, and with nobody."""
    engine = make_engine("suffix")
    for kinds, seen in ((("ngram",), {"ngram"}), (("none",), set()), (("suffix",), {"suffix"})):
        engine.configure(POLICY, DraftSettings(kinds=kinds))
        engine.submit(request("-".join(kinds), PROMPTS["copy"], max_tokens=30))
        _, ended = played(engine)
        (output,) = ended.values()
        assert output.report.proposers.keys() == seen
