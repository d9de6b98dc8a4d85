"""The parts of a training, each against what it stands for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.train import acceptance, answers, disk, features, prompts
from engine.train.corpus import Batch, Vocabulary
from engine.train.eagle3_head import Eagle3, Sizes
from engine.train.errors import TrainError
from engine.train.guess import Guess
from engine.train.loss import LawLoss
from engine.train.material import Material

SIZES = Sizes(
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=48,
    eps=1e-5,
    theta=1e4,
    aux=3,
    draft_vocabulary=40,
)


def eagle(sizes: Sizes = SIZES) -> Eagle3:
    torch.manual_seed(3)
    return Eagle3(sizes)


def drafted_slowly(head: Eagle3, aux: Tensor, embedded: Tensor, begin: int, steps: int) -> list[Tensor]:
    """What a round that begins at one row says, one row after another over all rows so far: [H] each."""
    hidden, said = head.fc(aux[:, : begin + 1]), []
    for step in range(steps):
        rows = begin + step + 1
        angles = head.angles(rows)
        out = head.layer(hidden, embedded[:, :rows], angles, [])
        said.append(head.norm(out)[0, -1])
        hidden = torch.cat([hidden, out[:, -1:]], 1)
    return said


def test_the_dense_head_says_what_a_round_says_step_by_step() -> None:
    """Several steps over all rows at once, against one round at a time with a growing text."""
    head, steps, length = eagle(), 4, 9
    aux, embedded = torch.randn(1, length, 96), torch.randn(1, length, 32)
    dense = [guess.rows[0] for guess in head(aux, embedded, steps)]
    for begin in range(length - steps):
        for step, said in enumerate(drafted_slowly(head, aux, embedded, begin, steps)):
            torch.testing.assert_close(dense[step][begin + step], said, atol=1e-5, rtol=1e-5)


def test_padding_and_neighbours_change_nothing() -> None:
    """A text alone, and beside a longer one."""
    head = eagle()
    aux, embedded = torch.randn(2, 8, 96), torch.randn(2, 8, 32)
    both = [guess.rows[0, :5] for guess in head(aux, embedded, 3)]
    alone = [guess.rows[0] for guess in head(aux[:1, :5], embedded[:1, :5], 3)]
    for one, other in zip(both, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_and_its_slopes_are_those_of_dense_cross_entropy() -> None:
    """Slices and hand-written slopes, against torch's own over full laws."""
    hidden = torch.randn(700, 16, requires_grad=True)
    matrix = torch.randn(24, 16, requires_grad=True)
    ids = torch.stack([torch.randperm(24)[:5] for _ in range(700)])
    probs, weights = torch.rand(700, 5) / 5, torch.rand(700)
    law = torch.zeros(700, 24).scatter_(1, ids, probs)
    plain = -((law * (hidden @ matrix.T).log_softmax(-1)).sum(-1) * weights).sum()
    expected = torch.autograd.grad(plain, (hidden, matrix))
    ours = LawLoss.apply(hidden, matrix, ids, probs, weights)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(
        torch.autograd.grad(2 * ours, (hidden, matrix)), tuple(2 * e for e in expected)
    )


@pytest.mark.parametrize("width", [320, 200])
def test_the_likeliest_are_those_of_topk(width: int) -> None:
    """By groups where they divide the vocabulary, and without."""
    logits = torch.randn(7, width)
    values, places = features.likeliest(logits, 4)
    torch.testing.assert_close(values, logits.topk(4).values)
    assert torch.equal(places, logits.topk(4).indices)


def test_acceptance_counts_only_what_a_round_reaches() -> None:
    """A head that is always right is examined everywhere; one that is wrong at the first position, nowhere else."""
    best = torch.tensor([[1, 2, 3, 0, 1, 2]])
    batch = Batch(
        tokens=torch.zeros(1, 6, dtype=torch.int64), aux=torch.zeros(1, 6, 4), ids=best[..., None],
        probs=torch.ones(1, 6, 1), weights=torch.tensor([[0.5, 1, 1, 1, 1, 1]]), best=best, full=torch.ones(1, 6, 1),
    )  # fmt: skip
    vocabulary = Vocabulary(torch.arange(4), torch.arange(4))

    def saying(wrong: int):
        def head(aux: Tensor, embedded: Tensor, steps: int):
            for step in range(steps):
                yield Guess(
                    torch.nn.functional.one_hot((best + (step == wrong)) % 4, 4).float(), 9 * torch.eye(4)
                )

        return head

    right = acceptance.count(saying(-1), batch, vocabulary, torch.zeros(1, 1), sampled=False)
    assert right.examined.tolist() == right.accepted.tolist() == [5, 4, 3, 2, 1, 0]
    wrong = acceptance.count(saying(1), batch, vocabulary, torch.zeros(1, 1), sampled=False)
    assert wrong.examined.tolist() == [5, 4, 0, 0, 0, 0]
    assert wrong.accepted.tolist() == [5, 0, 0, 0, 0, 0]


def test_an_unknown_line_of_prompts_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"messages": [], "prompt": "b"}\n')
    with pytest.raises(TrainError, match="line 2: give one of messages, prompt and opening"):
        prompts.read(file)
    file.write_text('{"prompt": 3}\n')
    with pytest.raises(TrainError, match="line 1"):
        prompts.read(file)


def test_built_in_prompts_are_the_same_for_a_seed() -> None:
    """And every kind is among them."""
    source = 'def f(x):\n    """Doc of f."""\n    return x\n'
    material = Material.of_sources([source, "not python ("], ["text " * 200], ["ein Satz"])
    made = prompts.builtin(300, 1, material)
    assert made == prompts.builtin(300, 1, material)
    assert made != prompts.builtin(300, 2, material)
    assert {prompt.traffic_class for prompt in made} == {"chat", "code", "documents"}
    assert any(prompt.opening is not None for prompt in made)
    assert any(prompt.prompt and "Doc of f" in prompt.prompt for prompt in made)


def test_loops_are_noticed() -> None:
    assert answers.loops(list(range(40)) * 3)
    assert not answers.loops(list(range(41)) * 3)
    assert not answers.loops(list(range(40)))


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    assert disk.shortage(1 << 60, 1 << 61, tmp_path / "not" / "there").startswith("the work needs about")
    assert disk.shortage(1000, 2000, tmp_path) is None
