"""What a reload changes, what it refuses, and what of a config is shown."""

import json
from pathlib import Path

import pytest
import tomli_w

from specd.config.layers import Loaded, fingerprint, load
from specd.config.paths import known_keys
from specd.config.reload import diff, ineffective, plan_reload, redacted, redacted_dump, without_restarts
from specd.config.schema import Config
from specd.config.section import Reload
from specd.errors import ConfigError, ReloadRefusedError
from tests.daemon.other_values import ONE_VALUE, changes

RECEIVER = '[{"name": "a", "url": "https://me:hunter2@host:1/hunter2?token=hunter2#hunter2"}]'


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
    """Test that the dump is JSON with config, pins and hash, its URLs without userinfo and query, and a receiver's
    without its path.
    """
    whole = loaded(alerts__receivers=RECEIVER)
    dump = json.loads(json.dumps(redacted_dump(whole)))
    assert dump["config"]["alerts"]["receivers"][0]["url"] == "https://***@host:1/***?***#***"
    assert dump["config"]["policy"]["k_max"] == 8
    assert dump["pinned"] == {"alerts.receivers": "--set"}
    assert dump["hash"] == whole.digest
    assert "hunter2" not in json.dumps(dump)


def test_paths_are_shown_where_they_are_no_secret() -> None:
    """Test that an engine that is observed, and a receiver's root, are shown with the path that they have."""
    assert redacted("https://host/models/a?key=hunter2") == "https://host/models/a?***"
    assert redacted({"url": "https://host/"}, ("alerts", "receivers")) == {"url": "https://host/"}


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


@pytest.mark.parametrize("key", [key for key in known_keys() if key not in ONE_VALUE])
def test_every_key_changes_alone_and_as_the_schema_says(key: str, tmp_path: Path) -> None:
    """Test for each key there is that another value is one change, that it is taken over or refused by its kind, and
    that a partial reload leaves a restart key as it was and says so.
    """
    file = tmp_path / "specd.toml"
    before, after, told = changes(tmp_path)[key]
    file.write_text(tomli_w.dumps(before))
    old = load(file, env={})
    file.write_text(tomli_w.dumps(after))
    new = old.again()
    (change,) = diff(old.config, new.config)
    assert change.key == told
    possible, pending = without_restarts(old, new)
    if change.kind is Reload.RESTART:
        with pytest.raises(ReloadRefusedError) as caught:
            plan_reload(old.config, new.config)
        assert caught.value.keys == (told,)
        assert (possible.config, pending) == (old.config, (change,))
    else:
        assert plan_reload(old.config, new.config) == (change,)
        assert (possible, pending) == (new, ())


def test_a_partial_reload_takes_the_hot_keys_alone(tmp_path: Path) -> None:
    """Test that restart keys keep their values, arrays and unset ones too, wherever else the file was changed."""
    file = tmp_path / "specd.toml"
    file.write_text('[model.draft]\nkind = ["ngram", "suffix"]\n[policy]\nk_max = 3\n')
    old = load(file, env={})
    file.write_text(
        '[model.draft]\nkind = "suffix"\n[policy]\nk_max = 4\nprofile = "p"\n[engine]\nthreads = 3\n'
    )
    possible, pending = without_restarts(old, old.again())
    assert [change.key for change in plan_reload(old.config, possible.config)] == ["policy.k_max"]
    assert [change.key for change in pending] == ["engine.threads", "model.draft.kind", "policy.profile"]
    assert possible.again().config == load(file, env={}).config


def test_a_partial_reload_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """Test that hot keys which only go together with a restart key are not taken over without it."""
    file = tmp_path / "specd.toml"
    file.write_text('[model.draft]\nkind = "model"\nmodel = "small"\n')
    old = load(file, env={})
    with pytest.raises(ConfigError, match="kept until a restart"):
        old.keeping({"model": {"draft": {"model": ""}}})


def test_the_fingerprint_is_of_what_lies_there(tmp_path: Path) -> None:
    """Test that it differs for an edit, another file, one that is gone or unreadable, and is the same again after."""
    (tmp_path / "conf.d").mkdir()
    file, other = tmp_path / "specd.toml", tmp_path / "conf.d" / "a.toml"
    file.write_text("[policy]\n")
    loaded = load(file, env={})
    seen = [fingerprint(loaded.sources)]
    assert seen == [loaded.seen]
    file.write_text("[policy]\nk_max = 4\n")
    seen.append(fingerprint(loaded.sources))
    other.write_text("")
    seen.append(fingerprint(loaded.sources))
    file.unlink()
    seen.append(fingerprint(loaded.sources))
    file.mkdir()
    seen.append(fingerprint(loaded.sources))
    file.rmdir()
    other.unlink()
    file.write_text("[policy]\n")
    assert len(set(seen)) == len(seen)
    assert fingerprint(loaded.sources) == seen[0]
