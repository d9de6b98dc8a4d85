"""What becomes of vLLM's tokens and its scheduler's reports on their way to the daemon; without vLLM."""

from types import SimpleNamespace

import pytest
from msgspec import structs

from engine.api import (
    Grammar,
    KVUsage,
    Output,
    PhaseSeconds,
    Request,
    Round,
    SamplingParams,
    StepReport,
    TokenLogprob,
)
from engine.text import TextStream
from engine.vllm.account import Account
from engine.vllm.host import Host
from engine.vllm.texts import Text, likelihoods
from tests.messages import a_report
from tests.tiny import make_tokenizer


def request(**sampling) -> Request:
    return Request(id="r", prompt=[10, 11], sampling=SamplingParams(max_tokens=20, **sampling))


def text(index: int = 0, **sampling) -> Text:
    wanted = request(**sampling)
    stream = TextStream.of(make_tokenizer(), wanted) if wanted.sampling.stop else None
    return Text(wanted, index, stream)


def one(accepted: int, *, k: int = 2, name: str = "r", proposer: str = "ngram") -> Round:
    return Round(name, "default", proposer, k, k, min(accepted + 1, k), accepted, "static", "so it is")


def step(number: int, *rounds: Round, used: int = 3) -> StepReport:
    return a_report(
        number,
        phases=PhaseSeconds(schedule=0.1, draft=0.1, verify=0.1, commit=0.1),
        rows=4,
        committed=sum(each.accepted + 1 for each in rounds),
        kv=KVUsage(free=5, used=used, cached=2),
        rounds=list(rounds),
    )


def accounted(kind: str = "ngram") -> tuple[Account, list[StepReport]]:
    sent: list[StepReport] = []
    return Account(10, (kind,), sent.append), sent


def test_an_output_goes_with_the_report_of_its_step() -> None:
    """Test that tokens whose round is known are told with it, and that the end carries the counts of all rounds."""
    account, sent = accounted()
    account.open(found := text())
    account.add(found, found.take([1], None, cached=0))
    assert not account.awaits_reports, "the first token comes of the prompt"
    account.settle()
    account.hear(step(1, one(2)))
    assert account.awaits_outputs
    account.add(found, found.take([2, 3, 4], "length", cached=16))
    assert not account.awaits_reports
    account.settle()
    first, last = sent
    assert (first.rows, first.phases.verify, [each.tokens for each in first.outputs]) == (0, 0.0, [[1]])
    (output,) = last.outputs
    assert (last.step, output.tokens, output.finish) == (1, [2, 3, 4], "length")
    report = output.report
    assert (report.rounds, report.drafted, report.examined, report.accepted) == (1, 2, [1, 1], [1, 1])
    assert (report.tokens, report.prompt_tokens, report.cached_tokens) == (4, 2, 16)
    assert account.is_empty


def test_an_output_ahead_of_its_report_is_known_to_be() -> None:
    """Test that tokens of a round that was not reported yet are seen to wait for it, until it comes."""
    account, sent = accounted()
    account.open(found := text())
    account.add(found, found.take([1], None, cached=0))
    account.settle()
    account.add(found, found.take([2], "stop", cached=0))
    assert account.awaits_reports
    account.hear(step(1, one(0)))
    assert not account.awaits_reports
    account.settle()
    assert sent[-1].outputs[0].report.rounds == 1


def test_nobody_waits_for_a_report_that_is_lost() -> None:
    """Test that outputs that were told without their report do not have the next ones wait for it."""
    account, sent = accounted()
    account.open(found := text())
    account.add(found, found.take([1, 2, 3], None, cached=0))
    assert account.awaits_reports
    account.settle()
    account.hear(step(5, one(0)))
    account.add(found, found.take([4], None, cached=0))
    assert not account.awaits_reports
    assert sent[0].outputs[0].tokens == [1, 2, 3]


def test_reports_keep_their_order_and_none_is_told_twice() -> None:
    """Test that several reports go out one by one, the outputs with the last, and a settled account says nothing."""
    account, sent = accounted()
    account.open(found := text())
    account.hear(step(1))
    account.hear(step(2))
    account.add(found, found.take([1], None, cached=0))
    account.settle()
    account.settle()
    assert [(each.step, len(each.outputs)) for each in sent] == [(1, 0), (2, 1)]


def test_the_pool_at_rest_holds_nothing_but_prefixes() -> None:
    """Test that blocks that were in use at the last report count as free once nothing runs."""
    account, _ = accounted()
    account.hear(step(7))
    account.settle()
    assert (account.steps, account.at_rest) == (7, KVUsage(free=8, used=0, cached=2))


def test_who_drafts_is_called_by_our_name() -> None:
    """Test that vLLM's name of a method does not reach metrics, and that "none" and the grammar stay what they are."""
    account, sent = accounted("model")
    rounds = [one(1, proposer=name) for name in ("draft_model", "none", "grammar")]
    account.hear(step(1, *rounds))
    account.settle()
    assert [each.proposer for each in sent[0].rounds] == ["model", "none", "grammar"]


def test_the_texts_of_a_request_are_told_apart() -> None:
    """Test that rounds count for the text that they name, and outputs carry its index."""
    account, sent = accounted()
    texts = [text(0), text(1)]
    for each in texts:
        account.open(each)
        account.add(each, each.take([1], None, cached=0))
    account.hear(step(1, one(1, name="r"), one(0, name="r#1")))
    for each, tokens in zip(texts, ([2, 3], [2]), strict=True):
        account.add(each, each.take(tokens, "length", cached=0))
    account.settle()
    ends = {output.index: output.report for output in sent[-1].outputs if output.finish}
    assert {index: report.accepted for index, report in ends.items()} == {0: [1, 0], 1: [0]}


@pytest.mark.parametrize(("include", "kept"), [(False, 3), (True, 3)])
def test_a_stop_string_ends_a_text_before_vllm_knows(include: bool, kept: int) -> None:
    """Test that tokens behind the one that completes the string are dropped, and rounds count as far as it goes."""
    tokens = make_tokenizer().encode("abcQX", add_special_tokens=False).ids
    assert len(tokens) == 5
    found = text(stop=("bc",), include_stop=include)
    assert found.take(tokens[:1], None, cached=0).finish is None
    found.count(one(3, k=3))
    found.count(one(1))
    output = found.take(tokens[1:], None, cached=0)
    assert (output.tokens, output.finish, found.ended) == (tokens[1:kept], "stop", True)
    report = found.told(output).report
    assert (report.rounds, report.accepted, report.tokens) == (1, [1, 1], kept)


def test_a_text_that_is_given_up_says_why() -> None:
    found = text()
    output = found.told(found.give_up("error", "no", refused=True))
    assert (output.finish, output.error, output.refused, output.tokens) == ("error", "no", True, [])
    assert output.report.rounds == 0


@pytest.mark.parametrize(("asked", "words"), [({"speculate": False}, "asked not"), ({"k": 0}, "asked not")])
def test_the_report_says_who_ruled_drafts_out(asked: dict, words: str) -> None:
    found = Text(structs.replace(request(), **asked), 0, None)
    assert words in found.told(found.give_up("cancelled")).report.not_speculated


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"grammar": Grammar("regex", "0"), "allowed_tokens": (5,)}, True),
        ({"grammar": Grammar("regex", "0"), "banned_tokens": (5,)}, True),
        ({"grammar": Grammar("regex", "0")}, False),
        ({"allowed_tokens": (5,)}, False),
    ],
)
def test_a_structure_that_cannot_be_drawn_is_the_requests_own_fault(asked: dict, refused: bool) -> None:
    """Test that vLLM's giving up is only told as a contradiction where there may be one."""
    output = text(**asked).take([5], "error", cached=0)
    assert (output.finish, output.refused) == ("error", refused)
    assert ("drop one of them" in output.error) == refused


def test_an_answer_that_cannot_be_read_is_not_the_requests_fault(caplog: pytest.LogCaptureFixture) -> None:
    """Test that a row of logprobs that is missing is an error of ours, with the reason in the log."""
    one = SimpleNamespace(token_ids=[5, 6], finish_reason=None, logprobs=[{5: likely(-1.0, 1)}])
    found = SimpleNamespace(outputs=[one], prompt_logprobs=None, num_cached_tokens=0)
    output = Host._output(SimpleNamespace(), text(logprobs=1), found)
    assert (output.finish, output.refused) == ("error", False)
    assert "ValueError" in caplog.text


def test_logprobs_are_sorted_and_cut() -> None:
    """Test that the likeliest come first, lower ids first among equals, and a row without a prediction stays none."""
    row = {7: likely(-2.0, 3), 5: likely(-1.0, 1), 4: likely(-1.0, 1)}
    assert likelihoods([None, row], [9, 7], 2) == [
        None,
        TokenLogprob(token=7, logprob=-2.0, rank=3, top=[(4, -1.0), (5, -1.0)]),
    ]
    assert likelihoods(None, [7], 2) is None
    assert likelihoods([], [7], 2) is None, "the prompt's have been told before"
    assert likelihoods([row], [7], None) is None


def likely(logprob: float, rank: int) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank)


def test_vllms_reasons_for_an_end_are_ours() -> None:
    """Test each word that vLLM ends a text with, and one that it may invent."""
    words = {"stop": "stop", "length": "length", "abort": "cancelled", "repetition": "stop", "new": "error"}
    ends: dict[str, Output] = {word: text().take([1], word, cached=0) for word in words}
    assert {word: output.finish for word, output in ends.items()} == words
    assert ends["new"].error
