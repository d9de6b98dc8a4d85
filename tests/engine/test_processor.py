"""What is read of /proc/cpuinfo."""

import platform

import pytest

from engine.processor import features, multiplies_bfloat16

AMD = (
    "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n"
)
XEON = "processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(("text", "multiplies"), [(AMD, False), (XEON, True), (ARM, True), ("", False)])
def test_bfloat16_is_looked_up(tmp_path, text: str, multiplies: bool) -> None:
    """Test that it is told by the names that Linux has for it."""
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert multiplies_bfloat16(file) is multiplies


def test_features_are_those_of_the_first_core(tmp_path) -> None:
    """Test that where Linux lists none, the architecture stands for them."""
    file = tmp_path / "cpuinfo"
    assert features(file) == platform.machine()
    file.write_text(AMD)
    assert features(file) == "flags\t\t: fpu sse avx2 fma"
