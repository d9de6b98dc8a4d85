"""`specd simulate`: traces as they come, and what is printed of them."""

import json
from pathlib import Path

import pytest

from policies.cost import DraftCost, StepCosts
from policies.profile import Subject, concluded
from specd.cli import main
from specd.errors import UserError
from specd.models.profile import write_profile
from specd.simulate.machines import BUILTIN, machine
from specd.simulate.reading import read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
LINES = """{"t": 3, "context": 20, "generated": 9, "class": "chat"}

{"t": 1.5, "context": 30, "generated": 5}
"""


def file(folder: Path, text: str, name: str = "trace.csv") -> Path:
    """With such a text."""
    path = folder / name
    path.write_text(text)
    return path


def test_azure_traces_are_read_as_they_are(tmp_path: Path) -> None:
    """Test that dates with seven digits of a second are read, and a class is named after the file."""
    trace = read_trace(file(tmp_path, AZURE))
    assert trace.arrival.tolist() == [0, pytest.approx(0.052)]
    assert trace.context.tolist() == [4808, 3180]
    assert trace.generated.tolist() == [10, 8]
    assert trace.classes == ("trace",)


def test_json_lines_are_read_and_sorted(tmp_path: Path) -> None:
    """Test that requests come in the order of arrival, each with its class."""
    trace = read_trace(file(tmp_path, LINES, "day.jsonl"))
    assert trace.arrival.tolist() == [0, 1.5]
    assert [trace.classes[kind] for kind in trace.kind] == ["day", "chat"]


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    """Test that a class column and others are found by their names."""
    trace = read_trace(file(tmp_path, "class,generated,note,context,t\na,3,x,7,0\n"))
    assert (trace.context[0], trace.generated[0], trace.classes) == (7, 3, ("a",))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("TIMESTAMP,ContextTokens\n1,2\n", ":1", "no column for generated"),
        (AZURE + "2023-11-16 18:17:05,0,3\n", ":4", "context is '0'"),
        (AZURE + "2023-11-16 18:17:05,5,many\n", ":4", "generated is 'many'"),
        (AZURE + "yesterday,5,5\n", ":4", "'yesterday' is no time"),
        (AZURE + "2023-11-16 18:17:05,5\n", ":4", "no request with generated"),
        (LINES + "{oops\n", ":4", "no request with t, context, generated"),
        ("t,context,generated\n", "", "has no requests"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, text: str, where: str, what: str) -> None:
    """Test that a refusal names the place and what is there."""
    path = file(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}{where}")
    assert what in str(caught.value)


def test_policies_are_told_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that a small trace ends in a table, a JSON file and a picture, of all that was asked for."""
    lines = [
        json.dumps({"t": i * 0.2, "context": 50 + i, "generated": 5 + i % 9, "class": "chat"})
        for i in range(30)
    ]
    path, result, picture = file(tmp_path, "\n".join(lines)), tmp_path / "out.json", tmp_path / "out.png"
    options = ["--profile", "host", "--policy", "adaptive,table,static-2,off", "--acceptance", "chat=0.8"]
    outputs = ["--json", str(result), "--plot", str(picture)]
    assert main(["simulate", str(path), "--noise", "0.1", *options, *outputs]) == 0
    out = capsys.readouterr().out
    policies = json.loads(result.read_text())["policies"]
    assert [each["policy"] for each in policies] == ["adaptive", "table", "static-2", "off"]
    assert all(each["policy"] in out for each in policies)
    assert {each["tokens"] for each in policies} == {sum(5 + i % 9 for i in range(30))}
    assert policies[3]["inter_token_mean"] > policies[2]["inter_token_mean"]
    assert picture.stat().st_size > 0
    assert str(tmp_path) not in result.read_text()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--policy", "clever"], "there is no 'clever'"),
        (["--policy", "static-9"], "static-0 to static-8"),
        (["--profile", "nowhere.json"], "nowhere.json cannot be read"),
        (["--plot", "out.txt"], "which kind of picture"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], what: str
) -> None:
    """Test that a wrong option exits 2 with a sentence."""
    assert main(["simulate", str(file(tmp_path, AZURE)), *options]) == 2
    assert what in capsys.readouterr().err


def profile(steps: object = ((1, 0.01), (9, 0.02)), drafts: object = None, **more: object) -> str:
    """As it stands in a file."""
    drafts = {"ngram": {"level": 0.0}, "head": {"level": 0.001}} if drafts is None else drafts
    return json.dumps({"costs": {"steps": steps, "key": 1e-6, "drafts": drafts}, **more})


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    """Test that costs of a file are taken, with the draft that costs most, and what is not known is skipped."""
    found = machine(str(file(tmp_path, profile(subject={"cores": 2}, max_running=9))))
    assert (found.costs.plain, found.costs.key, found.proposer, found.max_running) == (0.01, 1e-6, "head", 9)
    assert machine(str(file(tmp_path, profile(proposer="ngram"))), max_running=3).max_running == 3


def test_a_profile_of_calibrate_is_one(tmp_path: Path) -> None:
    """Test that what `specd calibrate` writes is read, with the costs that were measured."""
    subject = Subject("a processor", 2, 2, "abc", ("eagle-1",), "bfloat16", "none")
    costs = StepCosts(((1, 0.01), (8, 0.02)), {"eagle": DraftCost(0.001)}, key=1e-6, sequence=1e-4)
    path = tmp_path / "profile.json"
    write_profile(concluded(subject, costs, [], [], made="2026-01-01", mix="mixed", margin=0.05), path)
    assert machine(str(path)).costs == costs


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "is no cost profile"),
        (profile(steps=[[2, 0.01]]), "not of ascending rows from 1"),
        (profile(steps=[[1, 0.02], [2, 0.01]]), "more rows takes less time"),
        (profile(drafts={}), "no costs of drafts"),
        (profile(proposer="eagle"), "no costs of eagle"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_with_an_example(
    tmp_path: Path, text: str, what: str
) -> None:
    """Test that the sentence says what is wrong, and how one looks."""
    with pytest.raises(UserError, match=what) as caught:
        machine(str(file(tmp_path, text)))
    assert "specd calibrate" in str(caught.value)


@pytest.mark.parametrize("name", BUILTIN)
def test_machines_that_are_known_by_name_take_longer_for_more_rows(name: str) -> None:
    """Test that the tables of the built-in profiles rise."""
    table = BUILTIN[name].costs.table(512)
    assert (table[1:] >= table[:-1]).all()
