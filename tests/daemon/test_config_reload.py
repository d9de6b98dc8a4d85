"""What a reload changes, what it refuses, and what of a config is shown."""

import json

import pytest

from specd.config.layers import Loaded, load
from specd.config.reload import diff, ineffective, plan_reload, redacted, redacted_dump
from specd.config.schema import Config
from specd.config.section import Reload
from specd.errors import ReloadRefusedError

RECEIVER = '[{"name": "a", "url": "https://me:hunter2@host:1/path?token=hunter2#hunter2"}]'


def loaded(**flags: str) -> Loaded:
    return load(env={}, flags={key.replace("__", "."): value for key, value in flags.items()})


def config(**flags: str) -> Config:
    return loaded(**flags).config


def test_diff_lists_changed_keys_with_their_kind() -> None:
    """Test that each changed key appears once with both values and what the change takes."""
    changes = diff(config(), config(policy__k_max="4", server__listen="127.0.0.1:9"))
    assert [(change.key, change.old, change.new, change.kind) for change in changes] == [
        ("server.listen", "127.0.0.1:8000", "127.0.0.1:9", Reload.RESTART),
        ("policy.k_max", 8, 4, Reload.HOT),
    ]
    assert changes[1].text() == "policy.k_max: 8 -> 4 (hot)"


def test_equal_configs_have_no_changes() -> None:
    """Test that two configs read apart from the same values do not differ."""
    assert plan_reload(config(policy__k_max="4"), config(policy__k_max="4")) == ()


def test_restart_key_refuses_the_whole_reload() -> None:
    """Test that one key that needs a new process refuses all, and that only such keys are listed."""
    with pytest.raises(ReloadRefusedError) as caught:
        plan_reload(config(), config(policy__k_max="4", server__listen="127.0.0.1:9", engine__threads="1"))
    assert caught.value.keys == ("server.listen", "engine.threads")
    assert "restart" in str(caught.value)


def test_a_change_in_a_hidden_part_is_still_a_change() -> None:
    """Test that a webhook whose token alone changed is listed without showing either token."""
    (change,) = diff(
        config(alerts__receivers=RECEIVER), config(alerts__receivers=RECEIVER.replace("hunter2", "new"))
    )
    assert change.text() == "alerts.receivers: changed in a hidden part (hot)"


def test_dump_shows_everything_but_secrets() -> None:
    """Test that the dump is JSON with config, pins and hash, its URLs without userinfo and query."""
    whole = loaded(alerts__receivers=RECEIVER)
    dump = json.loads(json.dumps(redacted_dump(whole)))
    assert dump["config"]["alerts"]["receivers"][0]["url"] == "https://***@host:1/path?***#***"
    assert dump["config"]["policy"]["k_max"] == 8
    assert dump["pinned"] == {"alerts.receivers": "--set"}
    assert dump["hash"] == whole.digest
    assert "hunter2" not in json.dumps(dump)


def test_what_is_no_url_is_hidden_whole() -> None:
    """Test that text with a scheme that cannot be taken apart is not shown in part."""
    assert redacted("https://[hunter2") == "***"


def test_change_beneath_a_pin_is_said_to_be_vain(tmp_path) -> None:
    """Test that editing a key in the file while the environment sets it yields a sentence, and only then."""
    file = tmp_path / "specd.toml"
    file.write_text("[policy]\nk_max = 2\n")
    old = load(file, env={"SPECD_POLICY__K_MAX": "4"})
    assert ineffective(old, old.again()) == ()
    file.write_text("[policy]\nk_max = 3\n")
    assert ineffective(old, old.again()) == (
        "policy.k_max was changed in a file, but SPECD_POLICY__K_MAX pins it: change that and restart",
    )
