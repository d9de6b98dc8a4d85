"""The layers of the config, and the line that each fault becomes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specd.config.layers import Loaded, load, salvage_admin
from specd.config.paths import known_keys, reload_kind
from specd.errors import ConfigError

Load = Callable[..., Loaded]


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return tmp_path / "specd.toml"


@pytest.fixture
def load_text(main: Path) -> Load:
    def load_it(
        text: str = "", env: dict[str, str] | None = None, flags: dict[str, str] | None = None
    ) -> Loaded:
        main.write_text(text)
        return load(main, env=env or {}, flags=flags or {})

    return load_it


def faults(attempt: Callable[[], object], directory: Path) -> list[str]:
    """The faults, with file names made short."""
    with pytest.raises(ConfigError) as caught:
        attempt()
    return [fault.replace(f"{directory}/", "") for fault in caught.value.faults]


def test_later_layers_win(main: Path, load_text: Load) -> None:
    """Test that conf.d in name order beats the file, the environment beats both, and flags beat all."""
    conf_d = main.parent / "conf.d"
    conf_d.mkdir()
    (conf_d / "20.toml").write_text("[policy]\nprobe_k = 3\nhalf_life = 3.0\n")
    (conf_d / "10.toml").write_text("[policy]\nprobe_k = 2\nk_max = 2\nhalf_life = 2.0\nprior = 0.2\n")
    loaded = load_text(
        "[policy]\nprobe_k = 1\nk_max = 1\nhalf_life = 1.0\nprior = 0.1\nstatic_k = 1\n",
        env={"SPECD_POLICY__HALF_LIFE": "4", "SPECD_POLICY__PROBE_K": "4"},
        flags={"policy.probe_k": "5"},
    )
    policy = loaded.config.policy
    assert (policy.static_k, policy.k_max, policy.prior) == (1, 2, 0.2)
    assert (policy.half_life, policy.probe_k) == (4.0, 5)
    assert [path.name for path in loaded.files] == ["specd.toml", "10.toml", "20.toml"]


def test_values_on_top_win_and_read_no_file(main: Path, load_text: Load) -> None:
    """Test that what is set lies over the file as it was read, and over what was set before; that an edit of the file
    is not taken along; and that reading again drops it all.
    """
    loaded = load_text("[policy]\nk_max = 5\n")
    main.write_text("[policy]\nk_max = 6\nstatic_k = 6\n")
    one = loaded.with_values({"policy.k_max": 3})
    both = one.with_values({"policy.probe_k": 2})
    assert (both.config.policy.k_max, both.config.policy.probe_k) == (3, 2)
    assert both.config.policy.static_k == loaded.config.policy.static_k
    assert len({loaded.digest, one.digest, both.digest}) == 3
    assert both.again().config.policy.k_max == 6


def test_a_pinned_key_cannot_be_set(main: Path, load_text: Load) -> None:
    """Test that what the environment says is not overruled until the next reload, in silence or otherwise."""
    loaded = load_text(env={"SPECD_POLICY__K_MAX": "4"})
    found = faults(lambda: loaded.with_values({"policy.k_max": 3}), main.parent)
    assert found == ["policy.k_max is pinned by SPECD_POLICY__K_MAX: change that and restart"]


def test_a_set_receiver_may_not_lead_where_only_this_host_can_go(main: Path, load_text: Load) -> None:
    """Whoever sets keys of the running daemon is trusted less than its files, in which the same is allowed."""
    inside = {"name": "inside", "kind": "webhook", "url": "http://10.0.0.1/hook"}
    loaded = load_text()
    found = faults(lambda: loaded.with_values({"alerts.receivers": [inside]}), main.parent)
    assert len(found) == 1
    assert "inside may lead to private addresses" in found[0]
    allowed = loaded.with_values({"alerts.receivers": [{**inside, "private_addresses": False}]})
    assert [receiver.name for receiver in allowed.config.alerts.receivers] == ["inside"]


def test_a_set_engine_to_observe_may_not_lead_where_only_this_host_can_go(
    main: Path, load_text: Load
) -> None:
    """For the same reason."""
    inside = {"name": "inside", "url": "http://10.0.0.1", "key_file": "/etc/shadow"}
    found = faults(lambda: load_text().with_values({"observe": [inside]}), main.parent)
    assert "inside may lead to private addresses" in found[0]
    assert "inside names a file of this host" in found[1]
    allowed = load_text().with_values(
        {"observe": [{"name": "out", "url": "http://h", "private_addresses": False}]}
    )
    assert [one.name for one in allowed.config.observe] == ["out"]


def test_pinned_keys_say_by_whom_and_what_they_hide(load_text: Load) -> None:
    """Test that what environment and flags set is listed as pinned, with the file's value beneath it."""
    loaded = load_text(
        "[policy]\nk_max = 2\n",
        env={"SPECD_POLICY__K_MAX": "4", "SPECD_ADMIN__LISTEN": "unix:/a"},
        flags={"policy.prior": "0.5"},
    )
    assert loaded.pinned == {
        "policy.k_max": "SPECD_POLICY__K_MAX",
        "admin.listen": "SPECD_ADMIN__LISTEN",
        "policy.prior": "--set",
    }
    assert loaded.shadowed == {"policy.k_max": 2}


def test_hash_follows_the_effective_config(load_text: Load) -> None:
    """Test that the hash depends on the values in force and not on which layer says them."""
    by_file = load_text("[policy]\nk_max = 4\n").digest
    assert by_file == load_text("", env={"SPECD_POLICY__K_MAX": "4"}).digest
    assert by_file != load_text("").digest


def test_again_reads_the_same_places(main: Path, load_text: Load) -> None:
    """Test that `again` sees an edited file under the same environment."""
    loaded = load_text("[policy]\nk_max = 2\n", env={"SPECD_POLICY__PRIOR": "0.25"})
    main.write_text("[policy]\nk_max = 3\nprior = 0.75\n")
    policy = loaded.again().config.policy
    assert (policy.k_max, policy.prior) == (3, 0.25)


def test_environment_values_take_the_type_of_their_key(load_text: Load) -> None:
    """Test that numbers, booleans, paths, text of digits and arrays arrive as what the schema wants."""
    config = load_text(
        env={
            "SPECD_MODEL__TARGET__PATH": "123",
            "SPECD_MODEL__DRAFT__SKIP_LAYERS": "[1, 2]",
            "SPECD_ADMIN__TOKEN_FILE": "/token",
            "SPECD_ALERTS__RULES": '[{"class": "code", "below": 0.3}]',
        }
    ).config
    assert config.model.target.path == "123"
    assert config.model.draft.skip_layers == (1, 2)
    assert config.admin.token_file == Path("/token")
    assert config.alerts.rules[0].traffic_class == "code"


def test_reserved_environment_is_no_config(load_text: Load) -> None:
    """Test that the process's own directories are not taken for keys."""
    env = {"SPECD_CACHE_DIR": "/var/cache/specd", "SPECD_STATE_DIR": "/var/lib/specd"}
    assert load_text(env=env).pinned == {}


def test_named_file_that_is_missing_is_a_fault(main: Path) -> None:
    """Test that a config that was asked for by name never silently becomes the defaults."""
    assert faults(lambda: load(main, env={}), main.parent) == [
        "specd.toml: there is no such file; name one that exists, or none for the defaults"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[policy]\nk_maxx = 3", "policy.k_maxx: unknown key; did you mean policy.k_max?"),
        ("[polcy]", "polcy: unknown key; did you mean policy?"),
        ("[policy]\noff_above = 3", "policy.off_above: unknown key; did you mean policy.load.off_above?"),
        (
            "[model.target]\nzzz = 1",
            "model.target.zzz: unknown key; model.target has path, name, dtype, quantization, revision, update",
        ),
        ("[policy]\nk_max = 'four'", "policy.k_max: must be a whole number, not this text"),
        ("[policy]\nk_max = '4'", "policy.k_max: must be a whole number, not this text"),
        ("[policy]\nk_max = true", "policy.k_max: must be a whole number, not true"),
        ("[policy]\nk_max = 99", "policy.k_max: must be less than or equal to 16, not 99"),
        ("policy = 3", "policy: must be a table, not 3"),
        (
            "[policy]\nkind = 'best'",
            "policy.kind: must be 'goodput', 'ewma', 'static' or 'off', not this text",
        ),
        (
            "[[alerts.rules]]\nbelwo = 0.1\nbelow = 0.1",
            "alerts.rules[0].belwo: unknown key; did you mean alerts.rules[0].below?",
        ),
        ("[[alerts.rules]]\nclass = 'a'", "alerts.rules[0].below: is required"),
        (
            "[mqtt]\nurl = 'mqtt://me:pass@broker'",
            (
                "mqtt.url: it says more than scheme, host and port (user and password_file have their own keys):"
                " write mqtt://host:1883 or mqtts://host:8883"
            ),
        ),
        (
            "[mqtt]\nnode = 'all'",
            'mqtt.node: it must be one level, without /, and not "all", which stands for every node',
        ),
        (
            "[mqtt]\nprefix = 'a/+'",
            "mqtt.prefix: no topic may have it: leave out +, #, spaces and a $ at its beginning",
        ),
        (
            "[mqtt]\ncommands = ['reload', 'stop']",
            "mqtt.commands[1]: must be 'reload', 'set', 'target' or 'silence', not this text",
        ),
        (
            "[policy]\nkind = 'static'\nk_max = 2\nstatic_k = 3",
            "policy: static_k = 3 is above k_max = 2: raise k_max or lower static_k",
        ),
        (
            "[policy]\nobjective = 'latency'",
            (
                'policy: objective = "latency" needs latency_ms: how long 99 of 100 steps may take, in'
                " milliseconds"
            ),
        ),
        (
            "[policy]\nkind = 'static'\nobjective = 'latency'\nlatency_ms = 50",
            (
                'policy: objective = "latency" needs kind = "goodput": static does not reckon with seconds;'
                " [policy.load] is what bounds it"
            ),
        ),
        (
            "[policy.load]\nresume_at = 3",
            "policy.load: resume_at = 3 needs off_above: above what is drafting off?",
        ),
        (
            "[policy.load]\nresume_at = 3\noff_above = 2",
            ("policy: load.resume_at = 3 is above load.off_above = 2: drafting would be on and off at once"),
        ),
        (
            "[policy.load]\ncontext_table = [[9, 1], [4, 2]]",
            "policy.load.context_table: the counts [9, 4] must ascend",
        ),
        (
            "[[policy.tenants]]\nname = 'a'",
            ("policy.tenants[0]: neither k_max nor draft_tokens is set: set one, or leave the tenant out"),
        ),
        (
            "[[policy.tenants]]\nname = 'a'\nk_max = 0\n[[policy.tenants]]\nname = 'a'\nk_max = 1",
            "policy: tenants need different names, these are ['a', 'a']",
        ),
        ("[policy\n", "not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"),
    ],
)
def test_each_fault_is_one_line(text: str, line: str, main: Path, load_text: Load) -> None:
    """Test that a fault names its file, its key and what is right."""
    assert faults(lambda: load_text(text), main.parent) == [f"specd.toml: {line}"]


def test_all_faults_are_told_at_once(main: Path, load_text: Load) -> None:
    """Test that unknown keys and wrong types of different sections come together."""
    found = faults(lambda: load_text("[policy]\na = 1\nk_max = 'b'\n[drift]\nx = 1\n"), main.parent)
    assert len(found) == 3


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"SPECD_POLICYY__K": "1"}, "SPECD_POLICYY__K: policyy: unknown key; did you mean policy?"),
        (
            {"SPECD_POLICY__K_MAXX": "1"},
            "SPECD_POLICY__K_MAXX: policy.k_maxx: unknown key; did you mean policy.k_max?",
        ),
        (
            {"SPECD_POLICY__K_MAX": "x"},
            "SPECD_POLICY__K_MAX: policy.k_max: must be a whole number, not this text",
        ),
        (
            {"SPECD_POLICY__K_MAX": ""},
            "SPECD_POLICY__K_MAX: policy.k_max: must be a whole number, not this text",
        ),
        (
            {"SPECD_POLICY__LOAD__CONTEXT_TABLE": "[[1, 2]"},
            (
                "SPECD_POLICY__LOAD__CONTEXT_TABLE: policy.load.context_table: must be JSON here,"
                ' such as [[2, 8]] or [{"below": 0.2}]'
            ),
        ),
    ],
)
def test_faults_of_the_environment_name_the_variable(
    env: dict[str, str], line: str, main: Path, load_text: Load
) -> None:
    """Test that a fault of the environment is blamed on its variable, unknown top-level names included."""
    assert faults(lambda: load_text(env=env), main.parent) == [line]


def test_contradiction_across_layers_names_both(main: Path, load_text: Load) -> None:
    """Test that two keys that contradict each other are blamed on both places that say them."""
    found = faults(
        lambda: load_text("[model.draft]\nngram_min = 5\n", env={"SPECD_MODEL__DRAFT__NGRAM_MAX": "3"}),
        main.parent,
    )
    assert found == [
        (
            "specd.toml and SPECD_MODEL__DRAFT__NGRAM_MAX: model.draft:"
            " ngram_min = 5 is above ngram_max = 3: lower one or raise the other"
        )
    ]


def test_rejected_text_is_never_shown(main: Path, load_text: Load) -> None:
    """Test that a value that may be a secret does not appear in the fault about it."""
    text = "[[alerts.receivers]]\nname = 'a'\nurl = 'ftp://user:hunter2@host'\nsecret = 'hunter2'\n"
    found = faults(lambda: load_text(text), main.parent)
    assert len(found) == 2
    assert "hunter2" not in "\n".join(found)


def test_unreadable_file_says_why(main: Path) -> None:
    """Test that a file that is no text, and a directory in its place, are told as such."""
    main.write_bytes(b"a = '\xff'\n")
    assert faults(lambda: load(main, env={}), main.parent) == [
        "specd.toml: not valid TOML: byte 5 is not UTF-8"
    ]
    main.unlink()
    main.mkdir()
    assert faults(lambda: load(main, env={}), main.parent) == ["specd.toml: cannot be read: Is a directory"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\ndrain_seconds = inf\n", "server.drain_seconds: must be a finite number, not inf"),
        ("[policy]\nprior = nan\n", "policy.prior: must be a finite number, not nan"),
        ('[admin]\ntoken_file = "a\\u0000b"\n', "admin.token_file: holds a NUL character"),
        (
            '[store]\ndirectory = "~nobody-of-this-name/x"\n',
            "directory: it begins with the home directory of a user",
        ),
        (f'[store]\ndirectory = "{"x" * 300}"\n', "directory: this is longer than a path can be"),
        ('[[alerts.receivers]]\nname = "a\\u0000"\n', "alerts.receivers: holds a NUL character"),
        (f"a = {'[' * 5000}", "nested too deeply"),
        (
            f"[policy]\nk_max = {'[' * 300}{']' * 300}\n",
            "policy.k_max: arrays and tables are nested too deeply",
        ),
        ("[policy]\nk_max = 1979-05-27\n", "policy.k_max: must be a whole number, not"),
        (f"[policy]\nk_max = {'9' * 400}\n", "policy.k_max: a number has at most 64 bits"),
        (f"[policy]\nk_max = {'9' * 5000}\n", "not valid TOML: "),
        (f"[policy]\nk_max = 0x{'f' * 5000}\n", "policy.k_max: a number has at most 64 bits"),
    ],
)
def test_values_that_no_key_can_have_are_faults(text: str, words: str, main: Path, load_text: Load) -> None:
    """Test that what TOML can say and no key can be is refused by a sentence, and never an error of ours."""
    (fault,) = faults(lambda: load_text(text), main.parent)
    assert words in fault


def test_broken_config_still_tells_where_the_daemon_listens(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a fault elsewhere does not hide admin.listen, and that a fault there leaves the default."""
    monkeypatch.delenv("SPECD_ADMIN__LISTEN", raising=False)
    main.write_text("[policy]\nk_maxx = 1\n[admin]\nlisten = 'unix:/run/a'\n")
    assert salvage_admin(main, flags={}).listen == "unix:/run/a"
    main.write_text("[admin]\nlisten = 3\n")
    assert salvage_admin(main, flags={}).listen == "127.0.0.1:8001"


def test_every_key_says_what_a_change_takes() -> None:
    """Test that no key of the schema lacks its reload kind."""
    assert len({key: reload_kind(key.split(".")) for key in known_keys()}) > 40
