"""`engine.backend = "vllm"`: what of a config goes with it, and what is made of it."""

import sys
from pathlib import Path

import pytest
import tomli_w

from engine.api import DraftSettings
from specd.config.layers import load, merge
from specd.config.reload import Change, diff, plan_reload, without_restarts
from specd.config.schema import Config
from specd.config.section import Reload
from specd.errors import ConfigError, ReloadRefusedError
from specd.launching import engine_command, launch_of

ON = {"engine": {"backend": "vllm"}}


def config(tmp_path: Path, *sections: dict, env: dict[str, str] | None = None) -> Config:
    file = tmp_path / "specd.toml"
    file.write_text(tomli_w.dumps(merge([ON, *sections])))
    return load(file, env=env or {}).config


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"draft": {"kind": ["ngram", "suffix"]}}}, "drafts with one proposer"),
        ({"model": {"draft": {"kind": "layer-skip"}}}, "layers of the target itself"),
        ({"model": {"target": {"quantization": "int8"}}}, "specd's own engine"),
        ({"policy": {"profile": "p.json"}}, "policy.profile was measured with specd's own engine"),
        (
            {"model": {"draft": {"kind": "mtp"}}, "drift": {"on_canary_fail": "ngram"}},
            'on_canary_fail is "ngram", and vLLM has one proposer',
        ),
        ({"engine": {"vllm": {"options": {"model": "x"}}}}, "leave it out, use model.target.path"),
        ({"engine": {"vllm": {"options": "no JSON"}}}, "neither a table nor JSON of one"),
    ],
)
def test_what_vllm_cannot_do_is_a_fault_of_the_config(tmp_path: Path, sections: dict, sentence: str) -> None:
    """Test that each is refused by a sentence, and that the same is no fault with specd's own engine."""
    with pytest.raises(ConfigError) as fault:
        config(tmp_path, sections)
    assert sentence in str(fault.value)
    if "engine" not in sections:
        config(tmp_path, sections, {"engine": {"backend": "specd"}})


def test_auto_is_one_proposer_with_vllm(tmp_path: Path) -> None:
    assert config(tmp_path).drafting.kind == "ngram"
    assert config(tmp_path, {"engine": {"backend": "specd"}}).drafting.kind == "auto"
    assert config(tmp_path, {"model": {"draft": {"kind": "suffix"}}}).drafting.kind == "suffix"


def test_options_come_behind_the_keys(tmp_path: Path) -> None:
    """Test that keys at their defaults leave it to vLLM, that options add to them, also out of the environment."""
    assert config(tmp_path).engine.vllm.launch_options() == {}
    given = {"engine": {"vllm": {"tensor_parallel_size": 2, "options": {"seed": 1, "nested": {"a": [1]}}}}}
    options = {"tensor_parallel_size": 2, "seed": 1, "nested": {"a": [1]}}
    assert config(tmp_path, given).engine.vllm.launch_options() == options
    env = {"SPECD_ENGINE__VLLM__OPTIONS": '{"seed": 4}'}
    assert config(tmp_path, env=env).engine.vllm.launch_options() == {"seed": 4}


def test_options_are_one_key_of_a_reload(tmp_path: Path) -> None:
    """Test that another option, or one more, is told as a change that takes a restart."""
    before = config(tmp_path, {"engine": {"vllm": {"options": {"seed": 1}}}})
    after = config(tmp_path, {"engine": {"vllm": {"options": {"seed": 2, "block_size": 32}}}})
    (change,) = diff(before, after)
    assert (change.key, change.kind.value) == ("engine.vllm.options", "restart")
    assert "block_size" in change.text()


def test_lookups_may_be_what_a_fallen_draft_gives_way_to_where_they_draft_already(tmp_path: Path) -> None:
    given = {"drift": {"on_canary_fail": "ngram"}}
    assert config(tmp_path, given).drafting.kind == "ngram"
    assert config(tmp_path, given, {"model": {"draft": {"kind": "none"}}}).drafting.kind == "none"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("auto", "ngram_min", 1), ("ngram", "ngram_max", 7), ("suffix", "suffix_across", "all")],
)
def test_what_a_running_vllm_drafts_with_changes_with_a_restart(
    tmp_path: Path, kind: str, key: str, value: object
) -> None:
    """Test that a reload does not report drafts that vLLM does not make, and that another engine takes them at once."""

    def reloaded(backend: str) -> tuple[Change, ...]:
        engine = {"engine": {"backend": backend}}
        before = config(tmp_path, engine, {"model": {"draft": {"kind": kind}}})
        return plan_reload(before, config(tmp_path, engine, {"model": {"draft": {"kind": kind, key: value}}}))

    with pytest.raises(ReloadRefusedError, match=f"model.draft.{key} can only change with a restart"):
        reloaded("vllm")
    (change,) = reloaded("specd")
    assert change.kind is Reload.HOT


def test_the_rest_of_a_reload_is_taken_over_where_vllm_keeps_its_drafts(tmp_path: Path) -> None:
    """Test that a partial reload leaves the key for the next start."""
    file = tmp_path / "specd.toml"
    file.write_text('[engine]\nbackend = "vllm"\n')
    old = load(file, env={})
    file.write_text('[engine]\nbackend = "vllm"\n[model.draft]\nngram_min = 1\n[policy]\nk_max = 3\n')
    possible, pending = without_restarts(old, old.again())
    assert (possible.config.model.draft.ngram_min, possible.config.policy.k_max) == (2, 3)
    assert [change.key for change in pending] == ["model.draft.ngram_min"]


def test_the_engine_is_started_by_its_own_interpreter(tmp_path: Path) -> None:
    """Test that vLLM's process is found by its file, and that the daemon's interpreter is the default."""
    python, folder = engine_command(config(tmp_path, {"engine": {"vllm": {"python": "/v/python"}}}).engine)
    assert python == "/v/python"
    assert (Path(folder) / "__main__.py").is_file()
    assert engine_command(config(tmp_path).engine)[0] == sys.executable
    assert engine_command(Config().engine) == (sys.executable, "-m", "engine.worker")


def test_options_reach_the_launch_of_vllm_alone(tmp_path: Path) -> None:
    given = config(tmp_path, {"engine": {"vllm": {"enforce_eager": True}}})
    for engine, options in (("vllm", {"enforce_eager": True}), ("specd", {})):
        one = config(tmp_path, {"engine": {"backend": engine, "vllm": {"enforce_eager": True}}})
        launch = launch_of(
            one,
            given.model.target,
            tmp_path,
            DraftSettings(kinds=("none",)),
            given.policy.settings(),
            costs=None,
        )
        assert launch.vllm_options == options
