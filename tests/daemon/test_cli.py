"""The command line: help, refusals, exit codes, and what is not imported."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from specd.cli import main
from specd.cli.registry import COMMANDS
from tests.daemon.model_directory import write_model
from tests.other_tokenizer import give_tokenizer, make_other_tokenizer
from tests.tiny import make_tokenizer


@pytest.fixture(autouse=True)
def _no_outer_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep what the machine has in /etc and the environment out of the tests."""
    monkeypatch.setattr("specd.config.layers.DEFAULT_PATH", tmp_path / "etc" / "specd.toml")
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose model is whole."""
    file = tmp_path / "specd.toml"
    file.write_text(f'[model.target]\npath = "{write_model(tmp_path / "model")}"\n')
    return file


def test_help_lists_what_is_built_and_only_that(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that the help names every command, and none that would refuse."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")}
    assert caught.value.code == 0
    assert set(COMMANDS) <= listed


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that `specd COMMAND --help` exits 0 and explains itself."""
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: specd {name}" in capsys.readouterr().out


def test_nothing_typed_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that `specd` alone teaches, and exits 2 since nothing was done."""
    assert main([]) == 2
    assert "specd check" in capsys.readouterr().out


def test_misspelt_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that an unknown command is answered with the one it resembles."""
    assert main(["relaod"]) == 2
    assert capsys.readouterr().err == "specd relaod: no such command; did you mean reload?\n"


@pytest.mark.parametrize("command", [["--version"], ["schema"], ["check"]])
def test_no_torch_and_no_transformers(command: list[str], config: Path) -> None:
    """Test that version, schema and check, a checked model included, load neither torch nor transformers."""
    where = ["-c", str(config)] if command == ["check"] else []
    program = (
        "import sys\n"
        "from specd.cli import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as done: code = done.code\n"
        "assert code == 0, code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, *where],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_cut_off_by_a_pipe_is_no_fault() -> None:
    """Test that `specd schema | head -1` ends without a traceback."""
    program = "import sys; from specd.cli import main; sys.exit(main(['schema']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


def test_schema_tells_what_a_change_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that the schema is JSON and carries the reload kind of a key."""
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["PolicySection"]["properties"]["k_max"]["reload"] == "hot"


def test_check_of_a_sound_config_says_so(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that check exits 0 with a plain line for config and model."""
    assert main(["check", "-c", str(config)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("ok: config ")
    assert first.endswith(f" from {config}")
    assert second.startswith("ok: model ")


def test_check_tells_what_becomes_of_the_weights(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that check says that the linears are quantised, and refuses a format that the device has not."""
    scheme = "model.target.quantization"
    assert main(["check", "-c", str(config), "--set", f"{scheme}=int8"]) == 0
    assert capsys.readouterr().out.endswith("can be served, its linears quantised to int8 at every start\n")
    assert main(["check", "-c", str(config), "--set", f"{scheme}=fp8"]) == 2
    assert capsys.readouterr().err.startswith(f"{scheme}: fp8 weights need a CUDA device")


def test_check_tells_every_fault_on_its_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that faults of named files, of the model and of keys that do not fit it come together, exit 2."""
    overrides = ["--set", "admin.token_file=/no/token", "--set", "model.draft.skip_layers=[9]"]
    assert main(["check", "-c", str(config), *overrides]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "admin.token_file: /no/token cannot be read (No such file or directory): put one key a line there",
        "model.draft.skip_layers: the target has layers 0 to 3, not all of [9]",
    ]
    assert main(["check", "-c", str(config), "--set", "model.target.path=/no/model"]) == 2
    assert capsys.readouterr().err == "model.target.path: /no/model: there is no such directory\n"


def test_check_says_what_run_would_refuse(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that an open admin listener, an empty key file and a weak secret are seen before the start."""
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    keys.write_text("\n")
    secret.write_text("whsec_c2hvcnQ=\n")
    receivers = [{"name": "ops", "url": "https://example.org", "secret_file": str(secret)}]
    overrides = {
        "admin.listen": "0.0.0.0:8001",
        "server.api_keys_file": keys,
        "alerts.receivers": json.dumps(receivers),
    }
    flags = [flag for key, value in overrides.items() for flag in ("--set", f"{key}={value}")]
    assert main(["check", "-c", str(config), *flags]) == 2
    listener, key_file, weak = capsys.readouterr().err.splitlines()
    assert listener.startswith("admin.listen = 0.0.0.0:8001 is open to other machines: set admin.token_file")
    assert key_file.startswith(f"server.api_keys_file: {keys} is empty: put one key a line there")
    assert weak.startswith("receiver ops: line 1 of the secret file")
    assert "key of 5 bytes" in weak


def test_check_warns_of_a_limit_for_a_key_that_nobody_has(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that it is told with the names that there are, is no fault, and that a limit for a real key is not told."""
    (tmp_path / "keys").write_text("secret1 name=laptop\nsecret2 tenant=acme name=ci\n")
    server = f'[server]\napi_keys_file = "{tmp_path / "keys"}"\n'
    limits = "".join(f'[[server.limits]]\nkey = "{name}"\nrequests = 1\n' for name in ("ci", "lapdog"))
    config.write_text(f"{config.read_text()}{server}{limits}")
    assert main(["check", "-c", str(config)]) == 0
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert "server.limits.1.key: no key is called 'lapdog'" in warning
    assert "ci, laptop" in warning


def test_check_warns_of_a_slow_number_format(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that who asks for bfloat16 is told where the processor has no instructions for it, and nobody else is; nor
    where auto would be bfloat16 as well.
    """
    for asked, multiplies in (("auto", False), ("bfloat16", True), ("bfloat16", False)):
        monkeypatch.setattr("engine.processor.multiplies_bfloat16", lambda found=multiplies: found)
        assert main(["check", "-c", str(config), "--set", f"model.target.dtype={asked}"]) == 0
        is_slow = asked == "bfloat16" and not multiplies
        assert ("model.target.dtype: this processor" in capsys.readouterr().out) is is_slow
    int8 = ["--set", "model.target.dtype=bfloat16", "--set", "model.target.quantization=int8"]
    assert main(["check", "-c", str(config), *int8]) == 0
    assert "model.target.dtype: this processor" not in capsys.readouterr().out


def test_check_of_a_bad_key_prints_the_fault_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that a config fault goes to stderr as its line, without a traceback."""
    assert main(["check", "-c", str(config), "--set", "policy.k_maxx=1"]) == 2
    assert capsys.readouterr().err == "--set: policy.k_maxx: unknown key; did you mean policy.k_max?\n"


def test_override_without_a_value_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that --set takes KEY=VALUE only."""
    with pytest.raises(SystemExit) as caught:
        main(["check", "--set", "policy.k_max"])
    assert caught.value.code == 2
    assert "is not KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "route"])
@pytest.mark.parametrize(("env", "code"), [({}, 2), ({"NOTIFY_SOCKET": "/run/x"}, 78)])
def test_a_bad_config_exits_as_whoever_starts_it_wants(
    command: str,
    env: Mapping[str, str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Test that a bad config exits 78 under systemd, so that the unit is not restarted, and 2 elsewhere."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main([command, "--set", "policy.k_maxx=1"]) == code
    assert "did you mean policy.k_max?" in capsys.readouterr().err


def test_run_hands_the_config_to_the_daemon(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that the daemon gets the loaded config and log format, and that its exit code is the command's."""
    seen = SimpleNamespace()

    def serve(loaded: object, *, log_format: str) -> int:
        seen.loaded, seen.log_format = loaded, log_format
        return 7

    daemon = ModuleType("specd.daemon")
    daemon.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specd.daemon", daemon)
    assert main(["run", "-c", str(config), "--set", "policy.k_max=3", "--log-format", "json"]) == 7
    assert (seen.loaded.config.policy.k_max, seen.log_format) == (3, "json")


def test_models_check_and_fetch_refuse_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that a whole model passes, a demo not yet fetched says how to get it, and others are unknown."""
    assert main(["models", "check", str(write_model(tmp_path / "m"))]) == 0
    assert main(["models", "check", "demo"]) == 2
    assert "specd models fetch demo" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["models", "fetch", "llama"])
    assert caught.value.code == 2


def test_plan_marks_the_best_k(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that the table has a row per k, and that drafting that does not pay leaves k = 0 the best."""
    assert main(["plan", "--acceptance", "0.1", "--cost", "0.5", "--k-max", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) == 3
    assert "best" in rows[0]


def test_plan_knows_that_drafts_shorten_where_many_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that with a profile each number running has a column and a best k of its own, the later the shorter."""
    options = ["--profile", "gpu", "--running", "1,128", "--context", "1000"]
    assert main(["plan", "--acceptance", "0.7,0.6,0.5", *options]) == 0
    rows = [line.split("│")[3:5] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    few, many = ([i for i, row in enumerate(rows) if "best" in row[column]] for column in (0, 1))
    assert len(rows) == 9
    assert few > many > [0]


@pytest.mark.parametrize("value", ["2", "-1", "nan", "x"])
def test_plan_refuses_what_is_no_acceptance(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that a number out of range and text are refused with what is right."""
    with pytest.raises(SystemExit) as caught:
        main(["plan", f"--acceptance={value}", "--cost", "0.1"])
    assert caught.value.code == 2
    assert "is not a number from 0 to 1" in capsys.readouterr().err


def test_models_check_says_whether_one_model_can_draft_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that a pair passes, and that another tokenizer exits 2 by its first difference, unless it may be mapped."""
    target, draft, other = (str(write_model(tmp_path / name, vocab_size=400)) for name in ("t", "d", "o"))
    for path, tokenizer in (
        (target, make_tokenizer()),
        (draft, make_tokenizer()),
        (other, make_other_tokenizer()),
    ):
        give_tokenizer(Path(path), tokenizer)
    assert main(["models", "check", target, draft]) == 0
    assert f"ok: {draft} can draft for {target}" in capsys.readouterr().out
    assert main(["models", "check", target, other]) == 2
    assert "token 0 is '<|im_start|>' in the target's tokenizer" in capsys.readouterr().err
    assert main(["models", "check", target, other, "--mapped"]) == 0
    assert main(["models", "check", target, str(tmp_path / "none")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
