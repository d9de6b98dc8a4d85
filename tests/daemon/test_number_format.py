"""What model.target.dtype comes to on a machine."""

from pathlib import Path

import pytest

from engine.api import DraftSettings
from policies.settings import PolicySettings
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.launching import launch_of


@pytest.mark.parametrize(
    ("asked", "device", "multiplies", "found"),
    [
        ({}, "cpu", True, "bfloat16"),
        ({}, "cpu", False, "float32"),
        ({"quantization": "int8"}, "cpu", False, "bfloat16"),
        ({}, "cuda", False, "bfloat16"),
        ({"dtype": "bfloat16"}, "cpu", False, "bfloat16"),
        ({"dtype": "float16"}, "cuda", True, "float16"),
    ],
)
def test_auto_follows_the_machine(
    asked: dict[str, str], device: str, multiplies: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that it is float32 where a CPU has no instructions for bfloat16 and weights are as they are; what is named
    stays.
    """
    monkeypatch.setattr("engine.processor.multiplies_bfloat16", lambda: multiplies)
    target = TargetSection.model_validate(asked)
    assert target.number_format(device) == found
    config = Config.model_validate({"engine": {"device": device}})
    launch = launch_of(config, target, Path("/m"), DraftSettings(), PolicySettings(), costs=None)
    assert launch.dtype == found
