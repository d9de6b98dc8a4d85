"""What the canary keeps of pairs that served: a few in memory, some more in files."""

import os

from specd.target.canary import Kept, _keep, _remember


def test_the_last_few_pairs_are_remembered() -> None:
    """Test that what is used again counts as new, and that the oldest go."""
    kept: dict[int, str] = {}
    for number in range(8):
        _remember(kept, number, "a")
    _remember(kept, 0, "b")
    _remember(kept, 8, "a")
    assert list(kept) == [2, 3, 4, 5, 6, 7, 0, 8]
    assert kept[0] == "b"


def test_files_of_pairs_are_few_and_all_others_stay(tmp_path) -> None:
    """Test that the newest sixty-four are left of those, and what is no pair's is not touched."""
    others = ["serving.json", "texts-0a.json"]
    for name in others:
        _keep(tmp_path / name, Kept("t", "d", {}))
        os.utime(tmp_path / name, (0, 0))
    for number in range(70):
        _keep(tmp_path / f"t{number}+d-0.json", Kept(f"t{number}", "d", {}))
        os.utime(tmp_path / f"t{number}+d-0.json", (number, number))
    _keep(tmp_path / "t70+d-0.json", Kept("t70", "d", {}))
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {*others, *(f"t{number}+d-0.json" for number in range(7, 71))}
