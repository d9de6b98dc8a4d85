"""What the engine needs is known before it is allocated, and compared with what there is."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec import structs

from engine.api import DraftSettings, Launch
from engine.available import available_bytes, weights_shortage
from engine.budget import Budget, CannotServeError, budget, kv_blocks, row_bytes
from engine.draft.features import Reads
from engine.draft.medusa import MedusaPart
from engine.draft.occurrences import Occurrences
from engine.draft.registry import Parts
from engine.model.loader import LoadedModel
from engine.start import start
from policies.load import most_rows
from policies.settings import PolicyKind, PolicySettings

CPU = torch.device("cpu")
MIB = 1 << 20
MEMINFO = "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  4096 kB\n"


def machine(root: Path, **files: str) -> Path:
    """A made-up /proc and /sys; `__` in a name is a slash."""
    for name, text in {"proc__meminfo": MEMINFO, **files}.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize("groups", [{"proc__self__cgroup": "0::/a\n"}, {}])
def test_without_a_limit_the_hosts_memory_counts(tmp_path: Path, groups: dict[str, str]) -> None:
    """A group without a limit, and a kernel without groups."""
    assert available_bytes(CPU, machine(tmp_path, **groups)) == 4 * MIB


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    """Version 2: the limit of a group further up, less what it uses, file pages that can go not counted."""
    root = machine(tmp_path, proc__self__cgroup="0::/a/b\n")
    for group, limit, usage, files in (("a/b", "max", MIB, 0), ("a", str(3 * MIB), 2 * MIB, MIB // 2)):
        at = root / "sys/fs/cgroup" / group
        at.mkdir(parents=True, exist_ok=True)
        (at / "memory.max").write_text(f"{limit}\n")
        (at / "memory.current").write_text(f"{usage}\n")
        (at / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    assert available_bytes(CPU, root) == MIB + MIB // 2


def test_groups_of_version_1_count_too_also_from_inside_a_container(tmp_path: Path) -> None:
    """There the path that /proc names is not under the mount, and the mount itself is the group."""
    root = machine(tmp_path, proc__self__cgroup="9:name=systemd:/\n4:memory:/docker/1\n0::/\n")
    at = root / "sys/fs/cgroup/memory"
    at.mkdir(parents=True)
    (at / "memory.limit_in_bytes").write_text(f"{2 * MIB}\n")
    (at / "memory.usage_in_bytes").write_text(f"{3 * MIB}\n")
    (at / "memory.stat").write_text("total_inactive_file 0\n")
    assert available_bytes(CPU, root) == 0


def test_a_limit_that_cannot_be_read_is_not_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may hide the groups: the host's memory then counts, and the engine starts."""
    root = machine(tmp_path, proc__self__cgroup="4:memory:/\n")
    at = root / "sys/fs/cgroup/memory"
    at.mkdir(parents=True)
    (at / "memory.limit_in_bytes").write_text("1\n")
    read = Path.read_text

    def hidden(file: Path, *args: object, **kwargs: object) -> str:
        if file.is_relative_to(root / "sys"):
            raise PermissionError
        return read(file, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert available_bytes(CPU, root) == 4 * MIB


def test_this_machine_has_memory() -> None:
    assert available_bytes(CPU) > MIB


@pytest.mark.parametrize(
    ("kv", "verify", "sentence"),
    [
        (8, 1, None),
        (15, 1, "6 MiB more than the 10 MiB available: lower engine.kv_mib to 9"),
        (1, 99, "lower engine.max_running or policy.k_max"),
    ],
)
def test_a_shortage_says_what_to_lower(kv: int, verify: int, sentence: str | None) -> None:
    said = Budget(
        weights=500 * MIB, draft_weights=0, kv=kv * MIB, draft_kv=0, suffix=0, verify=verify * MIB
    ).shortage(10 * MIB)
    assert said is None if sentence is None else sentence in said


def test_verify_slots_grow_with_texts_and_drafts(tiny: LoadedModel) -> None:
    launch = Launch(model_path="", kv_bytes=MIB, max_running=4, policy=PolicySettings(k_max=3, tree_nodes=0))
    needs = budget(launch, tiny, Parts())
    assert needs.kv == MIB
    assert needs.verify > 4 * 4 * tiny.vocabulary * tiny.dtype.itemsize
    bare = replace(tiny, row_width=0)
    longer = PolicySettings(k_max=7, tree_nodes=0)
    more = Launch(model_path="", max_running=8, max_batch_tokens=0, policy=longer)
    assert (
        budget(more, bare, Parts()).verify
        == 4 * budget(structs.replace(launch, max_batch_tokens=0), bare, Parts()).verify
    )


def test_a_row_more_takes_what_is_said_of_it(tiny: LoadedModel) -> None:
    """Test that plans for longer drafts differ by the rows that these add, times what is told of one."""
    short, long = (PolicySettings(k_max=k, tree_nodes=0) for k in (3, 8))
    needs = [budget(Launch(model_path="", policy=rules), tiny, Parts()).verify for rules in (short, long)]
    more = most_rows(long, Launch(model_path="").max_running) - most_rows(
        short, Launch(model_path="").max_running
    )
    assert needs[1] - needs[0] == more * row_bytes(tiny)


def test_trees_have_room_as_long_as_the_load_leaves_them_any(tiny: LoadedModel) -> None:
    """By the table for kinds that do not reckon with rows k_max = 8 is left to two, so that 48 chains need more
    rows than trees do. Who reckons with them gives trees no more than chains of all would have, or one whole tree.
    """
    bare = replace(tiny, row_width=0)

    def verify(running: int, nodes: int, kind: PolicyKind = "ewma") -> int:
        policy = PolicySettings(kind=kind, k_max=8, tree_nodes=nodes)
        launch = Launch(model_path="", max_running=running, max_batch_tokens=0, policy=policy)
        return budget(launch, bare, Parts()).verify

    assert verify(2, 35) == 4 * verify(2, 0)
    assert verify(48, 35) == verify(48, 0)
    assert verify(2, 34, "goodput") == 2 * verify(2, 0)
    assert verify(48, 35, "goodput") == verify(48, 0)


def test_the_logits_of_a_prompt_have_room(tiny: LoadedModel) -> None:
    """Of a whole chunk, where its logprobs are asked for."""
    few, many = (
        budget(Launch(model_path="", max_batch_tokens=n), replace(tiny, row_width=0), Parts())
        for n in (100, 200)
    )
    assert many.verify - few.verify == 100 * tiny.vocabulary * tiny.dtype.itemsize


def test_an_engine_that_does_not_fit_is_refused_with_what_to_lower(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has allocated anything, and after it has said what it would need."""
    said: list[str] = []
    monkeypatch.setattr("engine.start.available_bytes", lambda _: 64 * MIB)
    launch = Launch(model_path=str(tiny_dir), dtype="float32", kv_bytes=1 << 40)
    with pytest.raises(CannotServeError, match=r"lower engine\.kv_mib to"):
        start(launch, said.append)
    assert any(line.startswith("memory: weights") and "target KV 1048576 MiB" in line for line in said)


def test_weights_that_do_not_fit_are_not_even_read(tiny_dir: Path) -> None:
    assert weights_shortage(tiny_dir, 1 << 30) is None
    assert "take a smaller model" in weights_shortage(tiny_dir, 10)


def test_what_drafts_look_into_and_say_is_counted(tiny: LoadedModel) -> None:
    """Suffix structures of running texts, no more than the pool's positions; logits of all Medusa heads at once."""
    plain = Launch(model_path="", kv_bytes=MIB, max_running=4)
    looking = structs.replace(plain, draft=DraftSettings(kinds=("suffix",), suffix_bytes=5 * MIB))
    positions = kv_blocks(plain, tiny, Parts()) * plain.block_size
    running = min(4 * tiny.context(plain.max_context), positions)
    assert budget(looking, tiny, Parts()).suffix == 5 * MIB + Occurrences(running).nbytes
    heads = MedusaPart(SimpleNamespace(count=5, weight_bytes=7), Reads((), 0, lambda taps: taps), 0.1)
    said = budget(plain, tiny, Parts({"medusa": heads})).verify - budget(plain, tiny, Parts()).verify
    assert said == 2 * 4 * 5 * tiny.vocabulary * tiny.dtype.itemsize
