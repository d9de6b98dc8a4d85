"""Two tokenizers are the same or differ in something that is named; what they share is told by bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.pairing.pair import misfit, shared_tokens
from engine.pairing.shared import SharedTokens
from engine.pairing.tokenizers import PairingError, difference, read_tokenizer
from engine.token_bytes import TokenBytes
from tests.other_tokenizer import make_other_tokenizer, make_word_tokenizer
from tests.tiny import VOCABULARY, make_tokenizer

OURS, OTHER = make_tokenizer(), make_other_tokenizer()
KNOWN = OURS.get_vocab_size()  # the models have more rows of logits than that
SHARED = SharedTokens(OURS, OTHER, target_size=VOCABULARY, draft_size=OTHER.get_vocab_size())


def changed(change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    """The tiny tokenizer with something else in its file."""
    content = json.loads(OURS.to_str())
    change(content)
    return Tokenizer.from_str(json.dumps(content))


def swap_two(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def drop_last(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    del vocabulary[last]
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "".join(pair) != last]


def make_ordinary(content: dict[str, Any]) -> None:
    content["added_tokens"][2]["special"] = False


def add_one(content: dict[str, Any]) -> None:
    content["added_tokens"].append({**content["added_tokens"][0], "id": KNOWN, "content": "<|extra|>"})


def other_merges(content: dict[str, Any]) -> None:
    del content["model"]["merges"][0]


def lower_case(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Lowercase"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap_two, "is 'a' in the target's tokenizer and 'b' in the draft's"),
        (drop_last, "and none in the draft's"),
        (
            make_ordinary,
            "token 2, '<|pad|>', is a special token to the target's tokenizer and an added token to",
        ),
        (add_one, f"token {KNOWN} is none in the target's tokenizer and '<|extra|>' in the draft's"),
        (lower_case, "cut a text differently"),
        (other_merges, "cut a text differently"),
    ],
)
def test_the_first_difference_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    assert said in str(difference(OURS, changed(change)))


def test_a_tokenizer_written_in_another_way_is_the_same() -> None:
    """Merges were strings before they were pairs."""

    def older(content: dict[str, Any]) -> None:
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]

    assert difference(OURS, changed(older)) is None


def test_a_directory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for name, tokenizer in (("ours", OURS), ("other", OTHER), ("words", make_word_tokenizer(90))):
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        (tmp_path / name / "config.json").write_text(json.dumps({"text_config": {"vocab_size": size}}))
    ours, other = tmp_path / "ours", tmp_path / "other"
    assert misfit(ours, ours, mapped=False) is None
    assert 'set model.draft.vocabulary = "mapped"' in str(misfit(ours, other, mapped=False))
    assert misfit(ours, other, mapped=True) is None
    said = misfit(ours, tmp_path / "words", mapped=True)
    assert said is not None
    assert "shares 0 tokens with the target, of the 90 of the smaller vocabulary" in said
    assert "at least 25%" in said
    assert len(shared_tokens(ours, other).targets) == len(SHARED.targets)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(PairingError, match=r"tokenizer\.json: missing"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: cannot be read" in str(misfit(tmp_path, tmp_path, mapped=False))
    OURS.save(str(tmp_path / "tokenizer.json"))
    assert "config.json: cannot be read" in str(misfit(tmp_path, tmp_path, mapped=True))
    (tmp_path / "config.json").write_text("{}")
    assert "names no vocab_size" in str(misfit(tmp_path, tmp_path, mapped=True))


def test_shared_tokens_stand_for_the_same_bytes_and_are_all_of_them() -> None:
    ours, theirs = TokenBytes(OURS), TokenBytes(OTHER)
    for target, draft in zip(SHARED.targets.tolist(), SHARED.drafts.tolist(), strict=True):
        assert (ours.of(target), ours.special(target)) == (theirs.of(draft), theirs.special(draft))
    known = {theirs.of(token) for token in range(OTHER.get_vocab_size())}
    missed = set(range(KNOWN)) - set(SHARED.targets.tolist())
    assert missed
    assert all(ours.of(token) not in known for token in missed)
    assert len(set(SHARED.drafts.tolist())) == len(SHARED.drafts)


def test_a_special_token_is_no_text_that_looks_like_it() -> None:
    """`<|pad|>` is a control token of one model and a word of the other: a draft of it would mean something else."""
    shared = SharedTokens(OURS, changed(make_ordinary), target_size=VOCABULARY, draft_size=VOCABULARY)
    assert set(range(KNOWN)) - set(shared.targets.tolist()) == {2}


def test_tokens_without_a_row_of_logits_are_not_shared() -> None:
    shared = SharedTokens(OURS, OURS, target_size=300, draft_size=290)
    assert shared.targets.tolist() == list(range(290))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=12))
def test_what_the_draft_reads_spells_the_text(tokens: list[int]) -> None:
    """Byte by byte, whatever the tokens, and token by token: what was read stays when the text grows."""
    ours, theirs = TokenBytes(OURS), TokenBytes(OTHER)
    read = SHARED.reading(tokens)
    assert b"".join(map(theirs.of, read)) == b"".join(map(ours.of, tokens))
    for at in range(len(tokens)):
        assert SHARED.reading(tokens[:at]) == read[: len(SHARED.reading(tokens[:at]))]


def test_a_model_with_an_encoder_and_one_without_are_no_pair(tmp_path: Path) -> None:
    """Whatever their tokenizers; and one with an encoder reads no other tokens than its target's."""
    t5, llama = (tmp_path / kind for kind in ("t5", "llama"))
    for directory in (t5, llama):
        directory.mkdir()
        OURS.save(str(directory / "tokenizer.json"))
        (directory / "config.json").write_text(
            json.dumps({"model_type": directory.name, "vocab_size": KNOWN})
        )
    assert misfit(t5, t5, mapped=False) is misfit(llama, llama, mapped=False) is None
    for target, draft in ((t5, llama), (llama, t5)):
        assert "one has an encoder and the other has not" in misfit(target, draft, mapped=False)
    assert "reads the target's own tokens" in misfit(t5, t5, mapped=True)
