"""`specd calibrate` on a real engine: from a sweep to a profile, and who takes the profile and who does not."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from policies.profile import Cap
from specd.cli.main import main
from specd.models.profile import read_profile, write_profile
from tests.scenarios.stage import Stage


@pytest.fixture(scope="module")
def config(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("calibrated") / "specd.toml"
    file.write_text(f"""
[admin]
listen = "unix:{file.parent}/admin.sock"
[engine]
threads = 1
kv_mib = 64
max_running = 4
[model.target]
path = "{tiny_dir}"
dtype = "float32"
[model.draft]
kind = "ngram"
ngram_min = 1
match_factor = 16
[policy]
k_max = 3
""")
    return file


@pytest.fixture(scope="module")
def profile(config: Path) -> Path:
    """Of a calibration in small."""
    out, picture = config.parent / "profile.json", config.parent / "profile.png"
    arguments = [
        "--running",
        "1,3,9",
        "--seconds",
        "0.02",
        "--quick",
        "--out",
        str(out),
        "--plot",
        str(picture),
    ]
    assert main(["calibrate", "-c", str(config), *arguments]) == 0
    assert picture.stat().st_size > 1000
    return out


def test_a_calibration_measures_each_load_with_and_without_drafts(profile: Path) -> None:
    """Test that loads beyond max_running are left out, drafts bring tokens, and what steps cost is there in seconds."""
    found = read_profile(profile)
    assert {(point.running, point.k) for point in found.points} == {
        (1, 0),
        (1, 2),
        (1, 3),
        (3, 0),
        (3, 2),
        (3, 3),
    }
    assert all(0 < point.p50 <= point.p99 and point.tokens_per_second > 0 for point in found.points)
    off = [tokens for p in found.points if p.k == 0 for tokens in p.tokens_a_round.values()]
    on = [tokens for p in found.points if p.k == 3 for tokens in p.tokens_a_round.values()]
    assert set(off) == {1.0}
    assert 1.0 < max(on) <= 4.0
    assert found.costs.plain > 0
    assert found.subject.drafts == ("ngram",)


def test_the_profile_is_taken_where_it_was_made(profile: Path, config: Path) -> None:
    assert main(["check", "-c", str(config), "--set", f"policy.profile={profile}"]) == 0


def test_a_daemon_begins_with_what_the_profile_says(profile: Path, stage: Stage, tmp_path: Path) -> None:
    """Test that its costs are taken, and its caps where they are asked for: here drafting is off from one text on."""
    capped = tmp_path / "capped.json"
    write_profile(replace(read_profile(profile), load=Cap(((1, 0),), 0, 0)), capped)
    draft = {"kind": "ngram", "ngram_min": 1, "match_factor": 16}
    policy = {"profile": str(capped), "load": {"from_profile": True}}
    with stage.daemon(policy=policy, model={"draft": draft}) as daemon:
        daemon.ready()
        assert "by the profile, a plain step" in daemon.log
        daemon.post("/v1/completions", {"prompt": "a b a b", "max_tokens": 16, "ignore_eos": True})
        rounds = daemon.get("/admin/v1/decisions").json()["decisions"]
        assert {one["load_state"] for one in rounds} == {"off"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("model.target.dtype=bfloat16", "measured with the dtype float32, here it is bfloat16"),
        ("engine.threads=2", "measured with the number of compute threads 1, here it is 2"),
        ("model.draft.kind=suffix", "measured with the drafts ngram, here it is suffix"),
    ],
)
def test_the_profile_is_refused_where_something_differs(
    profile: Path, config: Path, change: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--set", f"policy.profile={profile}", "--set", change]
    assert main(["check", "-c", str(config), *arguments]) == 2
    said = capsys.readouterr().err
    assert f"policy.profile: {profile} does not hold here: it was {why}. Run `specd calibrate" in said


def test_nothing_is_measured_beside_a_daemon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["calibrate", "-c", str(config), "--set", f"admin.listen={address}"]) == 2
    assert f"something answers at {address} (admin.listen), so a daemon runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "model.draft.kind=none"], 'model.draft.kind = "none": there is no draft to calibrate'),
        (["--set", "policy.k_max=0"], "policy.k_max = 0: there is no draft to calibrate"),
        (["--out", "/nowhere/profile.json"], "/nowhere/profile.json cannot be written"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_by_a_sentence(
    config: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "-c", str(config), *arguments]) == 2
    assert sentence in capsys.readouterr().err
