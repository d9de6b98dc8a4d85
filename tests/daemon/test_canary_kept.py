"""What the canary keeps of pairs that served: a few in memory, some more in files."""

import os
from types import SimpleNamespace

from msgspec import structs

from policies.canary import CanaryVerdict, Counts
from specd.alerts.finding import Verdict
from specd.config.schema import Config
from specd.target.canary import Canary, Judged
from specd.target.kept import Kept, keep, remember
from specd.target.line import Identity


def judged(tmp_path, *kept: Kept) -> list[Judged]:
    return Canary(tmp_path, Config)._compared(*kept)


def test_what_was_asked_otherwise_is_not_compared(tmp_path) -> None:
    """Test that two pairs that were asked the same are compared, and that nothing is said of a fall, nor of its
    absence, where prompts, their tokens or lengths of drafts differ."""
    before = Kept("t1", "d", {"ngram": [Counts((60,), (50,))] * 12}, "asked")
    after = Kept("t2", "d", {"ngram": [Counts((60,), (10,))] * 12, "eagle": []}, "asked")
    (fallen,) = judged(tmp_path, before, after)
    assert (fallen.bad, fallen.finding().verdict) == (True, Verdict.BREACHED)
    (unknown,) = judged(tmp_path, before, structs.replace(after, asked="something else"))
    assert unknown.finding().verdict is Verdict.NO_EVIDENCE
    assert "the prompts, their tokens or canary.k are others" in unknown.text()
    assert unknown.document()["change"] is None
    assert unknown.positions == fallen.positions


async def test_what_served_before_with_other_prompts_is_not_compared_with_itself(
    tmp_path, monkeypatch
) -> None:
    """Test that on demand, too, the pair before is not replaced by the one that serves."""
    canary = Canary(tmp_path, Config)
    before = Kept("t1", "d", {"ngram": [Counts((60,), (50,))] * 12}, "earlier")
    keep(tmp_path / "serving.json", before)

    async def of(*_: object, **__: object) -> Kept:
        return Kept("t2", "d", {"ngram": [Counts((60,), (10,))] * 12}, "now")

    monkeypatch.setattr(canary, "of", of)
    line = SimpleNamespace(identity=lambda _: Identity("t2", "d", "none", "f"))
    (found,) = await canary.judge_serving(line)
    assert (found.before.target_revision, found.comparison.verdict) == ("t1", CanaryVerdict.NO_EVIDENCE)


def test_the_last_few_pairs_are_remembered() -> None:
    """Test that what is used again counts as new, and that the oldest go."""
    kept: dict[int, str] = {}
    for number in range(8):
        remember(kept, number, "a")
    remember(kept, 0, "b")
    remember(kept, 8, "a")
    assert list(kept) == [2, 3, 4, 5, 6, 7, 0, 8]
    assert kept[0] == "b"


def test_files_of_pairs_are_few_and_all_others_stay(tmp_path) -> None:
    """Test that the newest sixty-four are left of those, and what is no pair's is not touched."""
    others = ["serving.json", "texts-0a.json"]
    for name in others:
        keep(tmp_path / name, Kept("t", "d", {}))
        os.utime(tmp_path / name, (0, 0))
    for number in range(70):
        keep(tmp_path / f"t{number}+d-0.json", Kept(f"t{number}", "d", {}))
        os.utime(tmp_path / f"t{number}+d-0.json", (number, number))
    keep(tmp_path / "t70+d-0.json", Kept("t70", "d", {}))
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {*others, *(f"t{number}+d-0.json" for number in range(7, 71))}
