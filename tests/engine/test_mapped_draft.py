"""A draft with a tokenizer of its own drafts with the tokens that both have, and changes nothing."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.api import DraftSettings
from engine.draft.base import Ask
from engine.draft.mapped import MappedTokens
from engine.draft.model_part import ModelPart, load_model
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.pairing.shared import SharedTokens
from engine.sequence import Sequence
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.test_lossless import COPY, PROMPTS
from tests.engine.test_model_draft import OF_TOKENS, plain, silent
from tests.other_tokenizer import give_tokenizer, make_other_tokenizer
from tests.tiny import VOCABULARY, make_model_dir, make_tokenizer

CPU = torch.device("cpu")
KNOWN = make_tokenizer().get_vocab_size()


def renumbered(source: Path, path: Path) -> Path:
    """The same model under other numbers: its tokenizer's token t is t + 5 here, around the end."""
    shutil.copytree(source, path)
    content = json.loads((path / "tokenizer.json").read_text())
    tokens = {string: (token + 5) % KNOWN for string, token in content["model"]["vocab"].items()}
    content["model"]["vocab"] = tokens
    for added in content["added_tokens"]:
        added["id"] = tokens[added["content"]]
    (path / "tokenizer.json").write_text(json.dumps(content))
    weights = load_file(path / "model.safetensors")
    for name in OF_TOKENS & weights.keys():
        weights[name] = torch.cat([weights[name][:KNOWN].roll(5, dims=0), weights[name][KNOWN:]])
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def mapped(target: LoadedModel, directory: Path) -> ModelPart:
    settings = DraftSettings(kinds=("model",), model_path=str(directory), vocabulary="mapped")
    return load_model(settings, target, silent)


def test_a_draft_with_other_numbers_for_all_tokens_is_always_right(
    make_engine: MakeEngine, tiny: LoadedModel, tiny_dir: Path, tmp_path: Path
) -> None:
    """Through the map and back: the renumbered target is the target."""
    part = mapped(tiny, renumbered(tiny_dir, tmp_path / "renumbered"))
    ban = tuple(range(KNOWN, VOCABULARY))  # rows without a token have no bytes to map them by
    prompts = {name: [token % KNOWN for token in PROMPTS[name]] for name in ("short", "random", "block")}
    asked = [request(name, prompt, banned_tokens=ban) for name, prompt in prompts.items()]
    sampled = {"temperature": 1.0, "top_k": 20, "seed": 3}
    asked.append(request("sampled", prompts["random"], banned_tokens=ban, **sampled))
    outputs = generate(make_engine("model", k=4, part=part), *asked)
    expected = plain(make_engine, *asked[:-1])
    assert {name: outputs[name].tokens for name in expected} == expected
    for output in outputs.values():
        assert output.report.examined == output.report.accepted
        assert output.report.rounds <= 24 / 5 + 2  # one of them may catch up with the prompt


def test_a_draft_that_shares_some_tokens_changes_nothing(
    make_engine: MakeEngine, tiny: LoadedModel, tmp_path: Path
) -> None:
    """Random weights, and a pool that holds about one text: those that find no room are not drafted for."""
    other = give_tokenizer(make_model_dir(tmp_path, seed=3, vocab_size=340), make_other_tokenizer())
    part = mapped(tiny, other)
    asked = [request(name, [*PROMPTS[name], VOCABULARY - 1], max_tokens=20) for name in ("copy", "random")]
    position = tiny.bytes_per_position + part.bytes_per_position
    outputs = generate(make_engine("model", part=part, kv_bytes=110 * position), *asked)
    assert {name: output.tokens for name, output in outputs.items()} == plain(make_engine, *asked)
    assert all(output.report.drafted > 0 for output in outputs.values())


def test_a_mapped_law_lies_on_the_shared_tokens_alone(tiny: LoadedModel, tmp_path: Path) -> None:
    other = give_tokenizer(make_model_dir(tmp_path, seed=3, vocab_size=340), make_other_tokenizer())
    part = mapped(tiny, other)
    memory = KVMemory(tiny.shapes, 20, 4, torch.float32, CPU)
    proposer = part.proposer(memory, Runner(memory))
    pool = BlockPool(20, 4)
    sequence = Sequence(request("a", COPY, temperature=1.5), pool, None)
    sequence.table.reserve(len(COPY) + 5)
    (draft,) = proposer.propose([Ask(sequence, 5, 5)])
    assert part.shared is not None
    shared = torch.from_numpy(part.shared.targets)
    assert torch.isin(torch.tensor(draft.tokens), shared).all()
    assert torch.allclose(draft.probs[:, shared].sum(dim=1), torch.ones(5))
    assert torch.allclose(draft.probs.sum(dim=1), torch.ones(5))


def test_places_go_to_the_texts_asked_for_last_and_are_never_taken_from_one_that_is_being_written() -> None:
    """Four blocks of four places, for texts that each take three."""
    shared = SharedTokens(make_tokenizer(), make_tokenizer(), target_size=KNOWN, draft_size=KNOWN)
    reader, pool = MappedTokens(shared, blocks=4, block_size=4), BlockPool(20, 4)
    a, b = (Sequence(request(name, [7] * 9), pool, None) for name in ("a", "b"))
    assert reader.room(b, 99) == 16
    first = reader.open(a, 3)
    assert first is not None
    assert (first.start, len(first.fresh), first.end) == (0, 9, 9)
    assert reader.open(b, 3) is None
    assert (reader.room(b, 99), reader.room(a, 99)) == (4, 16)
    reader.close(a, 11, [8, 9, 10])
    a.extend([8, 20])
    assert (reader.owed(a), reader.owed(b)) == (0, 8)  # of a, the accepted guess was read
    again = reader.open(a, 1)
    assert again is not None
    assert (again.start, again.fresh) == (10, [20])  # the accepted guess is there, the rejected one is not
    reader.close(a, 11, [])
    taken = reader.open(b, 3)
    assert taken is not None
    reader.close(b, 9, [])
    anew = reader.open(a, 1)
    assert anew is not None
    assert (anew.start, len(anew.fresh)) == (0, 11)
    reader.close(a, 11, [])
    reader.forget("a")
    reader.forget("a")
    assert reader.open(b, 7) is not None


def test_a_text_without_room_is_not_offered_for_until_there_is_some(
    tiny: LoadedModel, tmp_path: Path
) -> None:
    """An empty draft shows nothing, so a policy would choose it again and again."""
    other = give_tokenizer(make_model_dir(tmp_path, seed=3, vocab_size=340), make_other_tokenizer())
    memory = KVMemory(tiny.shapes, 8, 4, torch.float32, CPU)
    proposer = mapped(tiny, other).proposer(memory, Runner(memory))
    pool = BlockPool(20, 4)
    texts = [Sequence(request(name, COPY), pool, None) for name in ("a", "b")]
    for text in texts:
        text.table.reserve(len(COPY) + 8)
    for text in texts:
        (chain,) = proposer.options(text)  # a tree would want a place for each of its nodes
        assert (chain.k, chain.width, chain.owed) == (32 - len(COPY), 1, len(COPY) - 1)
    drafts = proposer.propose([Ask(text, 2, 2) for text in texts])
    assert [len(draft.tokens) for draft in drafts] == [2, 0]
    assert [len(proposer.options(text)) for text in texts] == [1, 0]
    proposer.forget("a")
    assert proposer.options(texts[1])
