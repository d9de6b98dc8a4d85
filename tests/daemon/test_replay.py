"""`specd replay`: what the alarm would have said of recorded requests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specd.cli.main import main
from specd.config.layers import load
from specd.replay import Replay, Update, read_reports

START = 1764430000.0
Line = dict[str, Any]
Told = Callable[..., list[Line]]


def report(
    t: float, mean: float, rng: np.random.Generator, *, name: str = "chat", target: str = "t1"
) -> Line:
    examined, accepted, own = [int(rng.integers(30, 90))], [], rng.beta(mean * 25, (1 - mean) * 25)
    for _ in range(3):
        accepted.append(int(rng.binomial(examined[-1], own)))
        examined.append(accepted[-1])
    return {
        "t": START + t, "request": f"r-{t}", "class": name, "tenant": "a", "temperature": 0.0,
        "target_revision": target, "draft_revision": "d1", "proposer": "eagle",
        "examined": examined[:3], "accepted": accepted, "tokens": sum(accepted) + examined[0],
    }  # fmt: skip


def steady(count: int, mean: float, seed: int = 0, start: float = 0.0, **named: str) -> list[Line]:
    rng = np.random.default_rng(seed)
    return [report(start + place, mean, rng, **named) for place in range(count)]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """What the command prints of these lines."""

    def run(lines: list[Line], *options: str) -> list[Line]:
        file = tmp_path / "reports.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        empty = tmp_path / "empty.toml"
        empty.write_text("")
        assert main(["replay", str(file), "-c", str(empty), *(options or ["--now-from-record"])]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_an_update_that_ruins_the_draft_is_told_with_its_cause(told: Told) -> None:
    update = {"t": START + 300, "event": "target_update", "target_revision": "t2"}
    lines = [*steady(300, 0.75), update, *steady(60, 0.5, 1, 300, target="t2")]
    (alert,) = told(lines)
    assert (alert["name"], alert["state"]) == ("SpecdAcceptanceDrift", "firing")
    assert alert["labels"] == {
        "alertname": "SpecdAcceptanceDrift", "kind": "step", "class": "chat", "temperature": "greedy",
        "proposer": "eagle", "severity": "warning", "target_revision": "t2", "draft_revision": "d1",
    }  # fmt: skip
    assert alert["startsAt"].startswith("2025-11-29T15:31:")
    assert alert["annotations"]["suspected_cause"].startswith("target update at 2025-11-29 15:31:40Z (to t2)")


def test_what_comes_back_is_told_as_resolved(told: Told) -> None:
    first, second = told([*steady(300, 0.75), *steady(60, 0.5, 1, 300), *steady(120, 0.75, 2, 360)])
    assert (first["state"], second["state"]) == ("firing", "resolved")
    assert first["fingerprint"] == second["fingerprint"]
    assert second["annotations"]["resolution"] == "acceptance is back at its baseline"


def test_the_floor_rules_are_asked_too(told: Told) -> None:
    """Under 0.2 for a minute, and with no baseline."""
    (alert,) = told(steady(90, 0.1))
    assert (alert["name"], alert["labels"].get("kind")) == ("SpecdAcceptanceCollapse", None)


def test_steady_traffic_and_another_mix_say_nothing(told: Told) -> None:
    a, b = steady(400, 0.8, 3, name="a"), steady(400, 0.5, 4, name="b")
    rng = np.random.default_rng(5)
    assert told([(b if rng.random() < (0.5 if i < 200 else 0.95) else a)[i] for i in range(400)]) == []


def test_a_config_decides_what_counts(told: Told) -> None:
    lines = [*steady(300, 0.75), *steady(60, 0.5, 1, 300)]
    assert told(lines, "--now-from-record", "--set", "drift.min_drop=0.4") == []


def test_a_request_of_the_revision_before_an_update_says_nothing_of_the_new_one(told: Told) -> None:
    late = steady(40, 0.3, 2, 300.5)
    new = steady(60, 0.75, 1, 300, target="t2")
    assert told(sorted([*steady(300, 0.75), *late, *new], key=lambda line: line["t"])) == []


def test_what_the_daemon_would_mute_is_muted(told: Told) -> None:
    """A silence; a drift within a collapse; a floor for as long as an update is given."""
    fallen = [*steady(300, 0.75), *steady(60, 0.5, 1, 300)]
    assert told(fallen, "--now-from-record", "--silence", "class=chat") == []
    assert len(told(fallen, "--now-from-record", "--silence", "class=code")) == 1
    lines = [*steady(300, 0.75), *steady(95, 0.04, 1, 300, target="t2")]
    options = ["--now-from-record", "--set", "alerts.update_grace_seconds=90"]
    (drift,) = told(lines[:385], *options)
    assert drift["name"] == "SpecdAcceptanceDrift"
    assert "kind" not in told(lines, *options)[1]["labels"]
    assert told(lines, *options)[1]["annotations"]["summary"].startswith(
        "Not recovered since the target update"
    )


def test_a_rollback_goes_on_with_the_revision_of_before(told: Told) -> None:
    """The alert of the revision that was left ends with it."""
    back = {"t": START + 360, "event": "target_update", "target_revision": "t1"}
    lines = [*steady(300, 0.75), *steady(60, 0.5, 1, 300, target="t2"), back, *steady(60, 0.75, 2, 360)]
    first, second = told(lines)
    assert (first["state"], second["state"]) == ("firing", "resolved")
    assert second["annotations"]["resolution"] == "another pair of revisions is served"
    assert second["labels"]["target_revision"] == "t2"


def test_without_the_option_the_file_ends_now(told: Told) -> None:
    lines = [*steady(300, 0.75), *steady(60, 0.5, 1, 300)]
    (then,), (now,) = told(lines), told(lines, "-c", "/dev/null")
    assert then["startsAt"] < "2025-12" < now["startsAt"]
    assert then["fingerprint"] == now["fingerprint"]


def test_a_clock_that_jumps_back_breaks_nothing(told: Told) -> None:
    lines = [*steady(300, 0.75), *steady(60, 0.5, 1, -5000)]
    (alert,) = told(lines)
    assert alert["name"] == "SpecdAcceptanceDrift"


def test_quiet_hours_are_looked_at_sixty_times(tmp_path: Path) -> None:
    """And not once a second."""
    file = tmp_path / "reports.jsonl"
    file.write_text("\n".join(json.dumps(steady(1, 0.5, start=start)[0]) for start in (0, 1e8)))
    replay = Replay(load(None, flags={}).config)
    looks: list[float] = []
    replay._look = lambda now: looks.append(now) or []  # type: ignore[method-assign]
    assert list(replay.run(read_reports(file), 0.0)) == []
    assert len(looks) == 61


def test_several_proposers_of_a_request_count_each_for_itself(tmp_path: Path) -> None:
    line = steady(1, 0.5)[0] | {"also": [{"proposer": "ngram", "examined": [2], "accepted": [1]}]}
    file = tmp_path / "reports.jsonl"
    file.write_text(json.dumps(line) + "\n\n" + '{"t": 1, "event": "target_update", "target_revision": "t2"}')
    first, second = read_reports(file)
    assert [shown.proposer for shown in first.shown()] == ["eagle", "ngram"]
    assert second == Update(t=1.0, target_revision="t2")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", ":1: "),
        ("[]", ":1: "),
        ('{"t": 1}', ":1: Object missing required field"),
        ('{"t": 1, "event": "restart"}', ':1: there is no event "restart"'),
        (json.dumps(steady(1, 0.5)[0] | {"accepted": [99, 1, 1]}), ":1: accepted must have"),
        (json.dumps(steady(1, 0.5)[0] | {"accepted": [1]}), ":1: accepted must have"),
        (json.dumps(steady(1, 0.5)[0] | {"expected": [1.0]}), ":1: expected must have"),
        (json.dumps(steady(1, 0.5)[0]).replace(str(START), "NaN"), ":1: t is no time"),
        ("", "has no reports"),
    ],
)
def test_a_line_that_is_no_report_is_refused_by_its_number(
    line: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reports.jsonl"
    file.write_text(line)
    assert main(["replay", str(file)]) == 2
    assert why in capsys.readouterr().err


def test_a_file_that_is_not_there_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "/none.jsonl"]) == 2
    assert "/none.jsonl cannot be read" in capsys.readouterr().err
