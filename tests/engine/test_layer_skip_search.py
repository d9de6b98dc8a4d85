"""The search for the layers to leave out: what it counts, what it finds, and that a kill costs nothing."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.batch import Span
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.skipset import read_skip_set
from engine.train import answers, kinds
from engine.train.agreement import Counts, Excerpt, Heard, count
from engine.train.errors import TrainError
from engine.train.job import Job
from engine.train.layer_skip import Journal, Lesson, Tried, judged, searched, split
from engine.train.skip_search import Skip, search
from engine.train.skip_worth import Costs, best
from tests.engine.conftest import MakeEngine, generate, request
from tests.tiny import VOCABULARY, make_model_dir

RNG = np.random.default_rng(3)
PROMPT = [int(t) for t in RNG.integers(3, VOCABULARY, size=9)]


def drafted(model: LoadedModel, tokens: list[int], skip: Skip, levels: int) -> list[list[int]]:
    """What layer skip drafts in the rounds that begin at each token: by the engine's forwards, one after another."""
    pool = BlockPool(16, 4)
    runner = Runner(KVMemory(model.shapes, 16, 4, model.dtype, model.device), model.kernels)
    table = BlockTable(pool)
    table.reserve(len(tokens) + levels)
    draft, drafts = model.forward.without_layers(skip), []
    for row, token in enumerate(tokens):
        guesses = [token]
        for level in range(levels):
            logits = runner.run(draft, runner.pack([Span(table, row + level, [guesses[-1]], 1)]))
            guesses.append(int(logits.argmax()))
        drafts.append(guesses[1:])
        runner.run(
            model.forward, runner.pack([Span(table, row, [token], 1)])
        )  # the target's keys, over the draft's
    table.release()
    return drafts


@pytest.mark.parametrize(("family", "skip"), [("llama", (1,)), ("gemma2", (1, 2))])
def test_what_is_counted_in_one_forward_a_level_is_what_rounds_from_every_token_would_draft(
    tmp_path: Path, make_engine: MakeEngine, family: str, skip: Skip
) -> None:
    """The reference drafts round by round, through the paged KV; gemma2 has a window and caps its scores."""
    model = load(
        make_model_dir(tmp_path, family, scale=1.5), torch.float32, torch.device("cpu"), lambda _: None
    )
    said = generate(make_engine("none", model=model), request("a", PROMPT))["a"].tokens
    tokens, start, levels = PROMPT + said, len(PROMPT), 3
    expected = Counts([0] * levels, [0] * levels)
    for row, guesses in enumerate(drafted(model, tokens, skip, levels)[start - 1 : -1], start=start):
        for level, (guess, token) in enumerate(zip(guesses, tokens[row:], strict=False)):
            expected.examined[level] += 1
            expected.accepted[level] += guess == token
            if guess != token:
                break
    found = count(
        model.forward.without_layers(skip), Heard(model.forward, Excerpt(tokens, start), model.device), levels
    )
    assert found == expected
    assert 0 < found.accepted[0] < found.examined[0], "a case that shows nothing"


@pytest.fixture(scope="module")
def planted_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose layers 1 and 2 add nothing."""
    path = make_model_dir(tmp_path_factory.mktemp("planted"))
    weights = load_file(path / "model.safetensors")
    for layer in (1, 2):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{layer}.{name}.weight"].zero_()
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def planted(planted_dir: Path) -> LoadedModel:
    return load(planted_dir, torch.float32, torch.device("cpu"), lambda _: None)


def test_the_search_finds_the_layers_that_do_nothing(planted: LoadedModel, tmp_path: Path) -> None:
    texts = [Excerpt([int(t) for t in RNG.integers(3, VOCABULARY, size=24)], 8) for _ in range(4)]
    costs = Costs(layers=4, rest=0.2)
    *_, last = searched(Lesson(planted, texts[:2]), costs, Journal(tmp_path / "tried.jsonl"))
    assert last.best == (1, 2)
    found = judged(last.best, Lesson(planted, texts[2:]), costs)
    assert found.counts.acceptance[0] == 1.0
    assert found.cost == pytest.approx(0.6)
    assert found.best.speedup > 1.0


def test_a_search_that_was_killed_goes_on_without_looking_twice(planted: LoadedModel, tmp_path: Path) -> None:
    file, costs = tmp_path / "tried.jsonl", Costs(layers=4, rest=0.2)
    texts = [Excerpt([int(t) for t in RNG.integers(3, VOCABULARY, size=20)], 8)]
    for progress in searched(Lesson(planted, texts), costs, Journal(file)):
        if progress.tried == 3:
            break
    with file.open("ab") as torn:
        torn.write(b'{"skip":[0,')
    *_, whole = searched(Lesson(planted, texts), costs, Journal(tmp_path / "whole.jsonl"))
    journal = Journal(file)
    assert len(journal.tried) == 3
    *_, resumed = searched(Lesson(planted, texts), costs, journal)
    assert resumed == whole
    assert Journal(file).tried == Journal(tmp_path / "whole.jsonl").tried
    assert len(file.read_bytes().splitlines()) == len(journal.tried)
    *_, again = searched(Lesson(planted, []), costs, Journal(file))  # no text is left to look at
    assert again == whole


def test_layers_that_are_worth_leaving_out_together_only_are_found() -> None:
    def worth(skip: Skip) -> float:
        return 2.0 if skip == (1, 3) else 1.0 - len(skip) / 10

    *_, last = search(5, worth, width=5)
    assert (last.best, last.worth) == ((1, 3), 2.0)


def test_what_a_set_is_worth_follows_acceptance_by_position_and_cost() -> None:
    costs = Costs(layers=4, rest=0.2)
    assert [costs.of(skipped) for skipped in (0, 2, 4)] == pytest.approx([1.0, 0.6, 0.2])
    assert best([0.9], 0.2).k > best([0.9], 0.6).k
    assert best([0.9, 0.0], 0.1).k == 1
    assert best([1.0], 0.1).speedup > best([0.9], 0.1).speedup > best([0.9], 0.2).speedup


def test_a_step_without_layers_costs_less_than_a_whole_one(planted: LoadedModel) -> None:
    measured = Costs.measured(planted)
    assert measured.layers == 4
    assert 0 < measured.rest < 1


def test_the_texts_that_judge_are_not_those_that_are_searched() -> None:
    texts = [Excerpt([i] * 20, 10) for i in range(9)]
    searched_on, judged_on = split(texts, 30, seed=1)
    assert len(searched_on) == len(judged_on) == 3
    assert not {each.tokens[0] for each in searched_on} & {each.tokens[0] for each in judged_on}
    assert split(texts, 30, seed=1) == (searched_on, judged_on) != split(texts, 30, seed=2)
    assert split(texts[:1], 30, seed=1) == (texts[:1], texts[:1])


def test_tried_sets_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "tried.jsonl")
    journal.add(Tried((1, 2), 30, 20))
    assert Journal(tmp_path / "tried.jsonl").tried == {(1, 2): Tried((1, 2), 30, 20)}


def job_of(target: Path, out: Path, texts: list[answers.Text]) -> Job:
    """A job whose prompts have been answered."""
    job = Job(
        kind="layer-skip",
        target=str(target),
        name="tiny",
        fingerprint="0123456789ab",
        prompts="chats.jsonl",
        out=str(out),
        tokens=1,
        dtype="float32",
        workers=1,
    )
    job.work.mkdir(parents=True)
    job.prompts_file.write_text("")
    job.answers(0).write_bytes(b"".join(msgspec.json.encode(text) + b"\n" for text in texts))
    return job


def answer(number: int, said: list[int], temperature: float = 0.0) -> answers.Text:
    return answers.Text(
        number=number, traffic_class="chat", temperature=temperature, prompt=PROMPT, answer=said
    )


def test_a_job_ends_in_a_file_that_says_what_to_expect_and_a_second_start_tries_nothing(
    planted_dir: Path, tmp_path: Path
) -> None:
    """Drawn answers are left out: the draft was not to say what was drawn."""
    texts = [answer(i, [int(t) for t in RNG.integers(3, VOCABULARY, size=12)]) for i in range(4)]
    job = job_of(planted_dir, tmp_path / "out", [*texts, answer(9, [1] * 50, temperature=0.7)])
    kinds.load("layer-skip").train(job)
    found = read_skip_set(tmp_path / "out")
    assert found.skip == (1, 2)
    assert (found.target, found.layers, found.tokens) == ("0123456789ab", 4, 24)
    assert found.acceptance[0] == 1.0
    assert 0 < found.cost < 1
    assert found.speedup > 0
    assert "--kind=layer-skip" in found.command
    tried = (job.work / "tried.jsonl").read_bytes()
    kinds.load("layer-skip").train(job)
    assert (job.work / "tried.jsonl").read_bytes() == tried
    assert read_skip_set(tmp_path / "out") == found


def test_a_job_without_greedy_answers_is_refused(planted_dir: Path, tmp_path: Path) -> None:
    job = job_of(planted_dir, tmp_path / "out", [answer(0, [5] * 9, temperature=0.7)])
    with pytest.raises(TrainError, match="no answer is left to search on: give more prompts"):
        kinds.load("layer-skip").train(job)
