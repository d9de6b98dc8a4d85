"""An engine that is to run on a GPU that is not there says what to change."""

import pytest
import torch

from engine.api import Launch
from engine.budget import CannotServeError
from engine.start import start


@pytest.mark.parametrize(
    ("built_for", "sentence"),
    [(None, "was built without CUDA: install a CUDA build"), ("13.0", "torch finds no GPU here")],
    ids=["a CPU build", "no GPU"],
)
def test_cuda_without_a_gpu_is_refused_by_a_sentence(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, sentence: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(
        CannotServeError, match=f'engine.device is "cuda", but.*{sentence}.*engine.device = "cpu"'
    ):
        start(Launch(model_path="none", device="cuda"), lambda _: None)
