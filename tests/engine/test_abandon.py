"""A self-check that fails in a step ends what ran, and nothing else."""

import pytest
import torch

from engine import exits
from engine.worker import _MOST_FAILURES, Worker, _exit_code
from tests.engine.conftest import MakeEngine, finish, generate, request

PROMPT = [5, 6, 7, 5, 6, 7, 5]


def broken(*_: object) -> None:
    raise AssertionError("one block is held twice")


@pytest.mark.parametrize("kind", ["ngram", "model", "eagle"])
@pytest.mark.parametrize("stage", ["_draft", "_pack", "_verify", "_commit", "_observe"])
def test_a_step_is_given_up_wherever_it_fails(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, stage: str, kind: str
) -> None:
    """What ran gets the error, what waited is served, the pool is whole, and later texts are as if nothing had been."""
    wanted = generate(make_engine(kind), request("w", PROMPT), request("again", PROMPT * 2))
    engine = make_engine(kind, max_running=2)
    for name in ("a", "b", "w"):
        engine.submit(request(name, PROMPT, n=1))
    for _ in range(3):
        engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine, stage, broken)
        with pytest.raises(AssertionError):
            engine.step()
    report = engine.abandon("a self-check failed")
    assert report.failed == "a self-check failed"
    assert {(output.id, output.finish, output.error) for output in report.outputs} == {
        (name, "error", "a self-check failed") for name in "ab"
    }
    assert (report.running, report.waiting, report.kv.used) == (0, 1, 0)
    engine.check_integrity()
    assert finish(engine)["w"].tokens == wanted["w"].tokens
    assert generate(engine, request("again", PROMPT * 2))["again"].tokens == wanted["again"].tokens


def test_all_texts_of_a_request_end_together(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait would begin with the blocks of the first; and a refusal that was to be told is told."""
    engine = make_engine("none", max_running=4)
    engine.submit(request("other", PROMPT))
    engine.submit(request("n", PROMPT, n=4))
    engine.step()
    engine.submit(request("refused", []))
    monkeypatch.setattr(engine, "_verify", broken)
    with pytest.raises(AssertionError):
        engine.step()
    monkeypatch.undo()
    told = [(output.id, output.index, output.refused) for output in engine.abandon("broken").outputs]
    assert sorted(told) == [("n", i, False) for i in range(4)] + [("other", 0, False), ("refused", 0, True)]


def test_failures_in_a_row_end_the_engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose every step fails is of no use to anybody; one good step between is enough to go on."""
    engine = make_engine("none")
    worker = Worker.__new__(Worker)
    worker._failures = 0
    step = engine.step
    for _ in range(2):
        monkeypatch.setattr(engine, "step", broken)
        for _ in range(_MOST_FAILURES - 1):
            engine.submit(request("a", PROMPT))
            assert "one block is held twice" in worker._step(engine).failed
        monkeypatch.setattr(engine, "step", step)
        assert worker._step(engine).failed is None
    monkeypatch.setattr(engine, "step", broken)
    for _ in range(_MOST_FAILURES - 1):
        worker._step(engine)
    with pytest.raises(AssertionError):
        worker._step(engine)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (MemoryError(), exits.NO_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), exits.NO_MEMORY),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), exits.DEVICE_FAILED),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_an_engine_knows_what_it_died_of(fault: Exception, code: int | None) -> None:
    """The daemon puts the exit code into words; what is no such fault ends with a traceback."""
    assert _exit_code(fault) == code


def test_memory_that_torch_cannot_have_is_known_by_its_words() -> None:
    """On CPU it raises a plain RuntimeError."""
    with pytest.raises(RuntimeError) as fault:
        torch.empty(1 << 60, dtype=torch.int8)
    assert _exit_code(fault.value) == exits.NO_MEMORY
