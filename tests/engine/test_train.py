"""Training of heads: what is read, what is learned, what a kill leaves behind."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.model.loader import load
from engine.train import __main__ as command
from engine.train import acceptance, answers, assembly, crew, features, pipeline, stages
from engine.train.answers import Text
from engine.train.corpus import Corpus, Vocabulary
from engine.train.errors import TrainError
from engine.train.job import Job
from engine.train.training import Plan, Trainer


@pytest.fixture
def job(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(answers, "ANSWER_TOKENS", 20)
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"def add_{n}(a, b):", "class": "code"} for n in range(10)]
    lines += [
        {"messages": [{"role": "user", "content": f"the daemon {n}"}], "temperature": 0.7} for n in range(10)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Job(
        kind="eagle3", target=str(tiny_dir), name="org/tiny", prompts=str(file), out=str(tmp_path / "out"),
        tokens=100_000, minutes=0.02, disk=1.0, workers=1, dtype="float32",
    )  # fmt: skip


def prepared(job: Job) -> Job:
    """Its folder as the pipeline makes it, up to the answers."""
    job.work.mkdir(parents=True)
    job.prompts_file.write_bytes(Path(job.prompts).read_bytes())
    return job


def done(stage: str, job: Job, goal: int = 1 << 30) -> None:
    for _ in stages.STAGES[stage](stages.Task(job, 0, goal)):
        pass


def test_shards_hold_what_transformers_says(tiny_dir: Path, tmp_path: Path) -> None:
    """States and laws of packed texts, against one text at a time through transformers."""
    texts = [
        Text(
            number=n,
            traffic_class="chat",
            temperature=0.7 * n,
            prompt=[3, 4 + n, 5],
            answer=list(range(6, 11 + n)),
        )
        for n in range(3)
    ]
    loaded = load(tiny_dir, torch.float32, torch.device("cpu"), lambda _: None, squeeze=False)
    shard = features.Shard(tmp_path / "train-0000.safetensors", texts)
    features.make(shard, features.Target(loaded, (1, 2, 3)))
    found = features.read(shard.path)
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32)
    for n, text in enumerate(texts):
        rows = slice(*found["starts"][n : n + 2].tolist())
        with torch.inference_mode():
            out = model(torch.tensor([text.prompt + text.answer]), output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer][0] for layer in (1, 2, 3)], -1)
        torch.testing.assert_close(found["aux"][rows].float(), states, atol=0.05, rtol=0.01)
        top = out.logits[0].softmax(-1).topk(features.LAW_WIDTH)
        judged = found["weights"][rows] > 0
        assert judged.tolist() == [True, False, *[True] * (len(text.answer) + 1)]
        torch.testing.assert_close(
            found["law_probs"][rows][judged].float(), top.values[judged], atol=2e-3, rtol=0.01
        )
        assert torch.equal(found["law_ids"][rows][judged][:, 0].long(), top.indices[judged][:, 0])
        assert found["sampled"][n] == (text.temperature > 0)


def test_answers_go_on_after_a_kill_as_if_nothing_had_been(job: Job, tmp_path: Path) -> None:
    """A half-written last line is no text; what is written in the end is what an undisturbed run writes."""
    prepared(job)
    done("answer", job)
    whole = {text.number: text for text in answers.read(job.answers(0))}
    assert set(whole) == set(range(20))
    lines = job.answers(0).read_bytes().splitlines(keepends=True)
    job.answers(0).write_bytes(b"".join(lines[:7]) + lines[7][:20])
    assert len(answers.read(job.answers(0))) == 7
    done("answer", job)
    assert {text.number: text for text in answers.read(job.answers(0))} == whole


def test_a_killed_reader_leaves_whole_shards(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that are there are not made again, the missing one is made as it was."""
    monkeypatch.setattr(features, "SHARD_TOKENS", 150)
    prepared(job)
    done("answer", job)
    job.shards.mkdir()
    done("read", job)
    made = {path.name: path.read_bytes() for path in job.shards.iterdir()}
    assert len(made) > 3
    lost, kept = sorted(job.shards.iterdir())[-2:]
    stamp = kept.stat().st_mtime_ns
    lost.unlink()
    (job.shards / f"{lost.stem}.partial").write_bytes(b"half")
    done("read", job)
    assert {path.name: path.read_bytes() for path in job.shards.iterdir()} == made
    assert kept.stat().st_mtime_ns == stamp


def corpus_of(tiny_dir: Path, folder: Path, job: Job) -> tuple[Corpus, Vocabulary, Tensor]:
    prepared(job)
    done("answer", job)
    job.shards.mkdir()
    done("read", job)
    own = assembly.parts(job)
    return own.train, own.vocabulary, own.embedding


def test_training_goes_on_after_a_kill_with_the_same_numbers(
    job: Job, tiny_dir: Path, tmp_path: Path
) -> None:
    """Eight steps at once, and four, a checkpoint, and four more in a new process's place."""
    corpus_of(tiny_dir, tmp_path, job)

    def trained(steps: int, checkpoint: Path | None = None) -> Trainer:
        own = assembly.parts(job)
        plan = Plan(minutes=1e9, rows=40_000, batch_rows=256, narrow=False, early=0.0)
        trainer = Trainer(own.head, own.train, vocabulary=own.vocabulary, embedding=own.embedding, plan=plan)
        assert checkpoint is None or trainer.resume(checkpoint)
        for _ in zip(range(steps), trainer.run(), strict=False):
            pass
        return trainer

    at_once, half = trained(8), trained(4)
    half.save(tmp_path / "checkpoint.pt")
    resumed = trained(4, tmp_path / "checkpoint.pt")
    assert resumed.progress.step == at_once.progress.step == 8
    for one, other in zip(at_once.head.parameters(), resumed.head.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def write_shards_of_a_cycle(job: Job, aux: int, words: int = 24) -> None:
    """Texts in which each token has one successor, and states that tell tokens apart, of `aux` layers."""
    torch.manual_seed(5)
    states = torch.randn(words, 64 * aux).bfloat16()
    job.shards.mkdir(parents=True)
    for name in ("train", "held"):
        tokens = torch.cat([(torch.arange(16) * 7 + begin) % words for begin in range(words)])
        ids = torch.stack([(tokens + 7 * k) % words for k in range(1, features.LAW_WIDTH + 1)], 1)
        shard = {
            "tokens": tokens.int(),
            "aux": states[tokens],
            "law_ids": ids.int(),
            "law_probs": (torch.arange(features.LAW_WIDTH) == 0).half().expand(len(tokens), -1).contiguous(),
            "weights": torch.ones(len(tokens)).half(),
            "starts": torch.arange(words + 1) * 16,
            "sampled": torch.zeros(words, dtype=torch.uint8),
            "classes": torch.zeros(words, dtype=torch.uint8),
        }
        save_file(shard, job.shards / f"{name}-0000.safetensors")


@pytest.mark.parametrize(("kind", "steps", "least"), [("eagle3", 3, 0.95), ("medusa", 2, 0.8)])
def test_what_is_trained_drafts_what_the_target_says(kind: str, steps: int, least: float, job: Job) -> None:
    """Positions of a text that can be foretold, in a few seconds; at the beginning hardly one."""
    job = msgspec.structs.replace(job, kind=kind)
    write_shards_of_a_cycle(job, len(assembly.kind(job).layers(4)))
    own = assembly.parts(job)

    def accepted() -> list[float]:
        judged = acceptance.table(own.head, own.held, own.vocabulary, own.embedding, own.held.places)
        return judged["chat"]["greedy"][:steps]

    assert accepted()[0] < 0.3
    plan = Plan(
        minutes=1e9, rows=30_000, batch_rows=256, narrow=False, matrix_rate=1e-2, rate=1e-2, steps=steps
    )
    for _ in Trainer(
        own.head, own.train, vocabulary=own.vocabulary, embedding=own.embedding, plan=plan
    ).run():
        pass
    assert min(accepted()) > least


def test_too_little_disk_is_refused_before_anything_is_written(job: Job) -> None:
    with pytest.raises(
        TrainError, match=r"needs about .* GB of disk, and 0.0 GB are allowed: allow more with --disk"
    ):
        pipeline.train(msgspec.structs.replace(job, disk=0.001))
    assert not Path(job.out).exists()


def in_process(stage: str, job_file: Path, goals: list[int], total: float, title: str) -> None:
    """In place of the workers: they import torch, once each."""
    job = msgspec.json.decode(job_file.read_bytes(), type=Job)
    for rank, goal in enumerate(goals):
        for _ in stages.STAGES[stage](stages.Task(job, rank, goal)):
            pass


def test_the_whole_way_writes_a_head_in_the_speculators_layout(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command's arguments to keys, shapes, config and record."""
    monkeypatch.setattr(crew, "work", in_process)
    given = ("kind", "target", "name", "prompts", "out", "tokens", "minutes", "disk", "workers", "dtype")
    assert command.main([f"--{name}={getattr(job, name)}" for name in given]) == 0
    out = Path(job.out)
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 2, 1]
    assert config["transformer_layer_config"]["hidden_size"] == config["target_hidden_size"] == 64
    tensors = load_file(out / "model.safetensors")
    attention = {f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"}
    mlp = {f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    norms = {
        f"layers.0.{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    assert set(tensors) == attention | mlp | norms | {
        "fc.weight",
        "norm.weight",
        "lm_head.weight",
        "d2t",
        "t2d",
    }
    kept = config["draft_vocab_size"]
    assert tensors["lm_head.weight"].shape == (kept, 64)
    assert tensors["fc.weight"].shape == (64, 192)
    targets = torch.arange(kept) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], targets)
    record = json.loads((out / "record.json").read_text())
    assert record["texts"] == {"code": 9, "recorded": 10}
    assert len(record["curve"]) >= 1
    assert config["speculators_config"]["verifier"]["name_or_path"] == record["target"] == "org/tiny"
    assert "--target=org/tiny" in record["command"]


def workers_that(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(crew, "PROGRAM", (sys.executable, "-c", program))


def test_a_stage_ends_when_all_its_workers_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workers_that(monkeypatch, f"import sys; open('{tmp_path}/' + sys.argv[2], 'w'); print('{{\"done\": 1}}')")
    crew.work("read", tmp_path / "job.json", [0, 0], 2, "reads")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_worker_that_fails_takes_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other one would wait for ever."""
    workers_that(monkeypatch, "import sys, time; sys.exit(1) if sys.argv[2] == '0' else time.sleep(1000)")
    with pytest.raises(TrainError, match=r"reads failed .*goes on where it was"):
        crew.work("read", tmp_path / "job.json", [0, 0], 2, "reads")
