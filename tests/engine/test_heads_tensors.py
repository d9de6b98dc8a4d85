"""The files of heads: what is read, and each refusal by its sentence."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.heads.tensors import HeadError, account, fill, read_config, read_tensors


class Surprise:
    """A pickle that would run code if it were let."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("ran",)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


def test_safetensors_are_read_from_all_files_and_before_any_pickle(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    torch.save({"old": torch.zeros(1)}, tmp_path / "old.bin")
    save_file({"weight": weights["weight"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"bias": weights["bias"]}, tmp_path / "model-00002-of-00002.safetensors")
    found = read_tensors(tmp_path, ["old.bin"])
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_read_as_data(tmp_path: Path, weights: dict[str, Tensor], zipped: bool) -> None:
    torch.save(weights, tmp_path / "old.bin", _use_new_zipfile_serialization=zipped)
    assert torch.equal(read_tensors(tmp_path, ["new.bin", "old.bin"])["weight"], weights["weight"])


def test_code_in_a_pickle_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": Surprise()}, tmp_path / "old.bin")
    with pytest.raises(HeadError, match=r"old\.bin cannot be read as plain weights"):
        read_tensors(tmp_path, ["old.bin"])
    assert "ran" not in capsys.readouterr().out


def test_files_that_hold_no_weights_are_refused(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    with pytest.raises(HeadError, match=r"neither \*\.safetensors nor old\.bin"):
        read_tensors(tmp_path, ["old.bin"])
    torch.save([weights["bias"]], tmp_path / "old.bin")
    with pytest.raises(HeadError, match="holds more than tensors by name"):
        read_tensors(tmp_path, ["old.bin"])
    torch.save({"epoch": 3}, tmp_path / "old.bin")
    with pytest.raises(HeadError, match="holds more than tensors by name: epoch"):
        read_tensors(tmp_path, ["old.bin"])
    save_file(weights, tmp_path / "a.safetensors")
    save_file(weights, tmp_path / "b.safetensors")
    with pytest.raises(HeadError, match="has bias in two files"):
        read_tensors(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"short")
    with pytest.raises(HeadError, match=r"b\.safetensors cannot be read as safetensors"):
        read_tensors(tmp_path)


def test_a_config_is_an_object(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="No such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(HeadError, match="is no JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(HeadError, match="holds no object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2}')
    assert read_config(tmp_path) == {"medusa_num_heads": 2}


def test_every_key_is_accounted_for(weights: dict[str, Tensor]) -> None:
    wanted = {"weight": (2, 3), "bias": (2,), "scale": ()}
    with pytest.raises(HeadError, match="the head lacks 1 of its weights: scale"):
        account(weights, wanted, what="the head")
    account(weights, wanted, what="the head", optional=["scale"])
    with pytest.raises(HeadError, match="has 2 weights that nothing reads: a, b"):
        account({**weights, "b": torch.ones(1), "a": torch.ones(1)}, wanted, what="", optional=["scale"])
    with pytest.raises(HeadError, match="weight is 2 x 3 and should be 3 x 2"):
        account(weights, {**wanted, "weight": (3, 2)}, what="the head", optional=["scale"])


def test_a_module_is_filled_in_its_own_number_format(weights: dict[str, Tensor]) -> None:
    linear = nn.Linear(3, 2, dtype=torch.bfloat16)
    fill(linear, weights, what="the head")
    assert torch.equal(linear.weight, weights["weight"].bfloat16())
    with pytest.raises(HeadError, match="lacks 1 of its weights: bias"):
        fill(linear, {"weight": weights["weight"]}, what="the head")
