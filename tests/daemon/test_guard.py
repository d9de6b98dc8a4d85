"""Which listeners only this machine can reach."""

import pytest

from specd.config.schema import AdminSection, Config, ServerSection
from specd.http.guard import exposed, host_rule, is_local


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        ("127.0.0.1:8000", True),
        ("127.8.9.1:0", True),
        ("localhost:1", True),
        ("[::1]:8000", True),
        ("unix:/run/specd/admin.sock", True),
        ("0.0.0.0:8000", False),
        ("[::]:8000", False),
        (":8000", False),
        ("10.0.0.1:8000", False),
        ("127.evil.example:8000", False),
        ("localhost.example:8000", False),
    ],
)
def test_what_is_open_to_others_needs_keys(listen, local, tmp_path):
    """Test that wildcards, other addresses and names that look like loopback are refused without keys, on both
    listeners, and taken with them.
    """
    assert is_local(listen) is local
    for section, build in (("admin", AdminSection), ("server", ServerSection)):
        key = {"admin": "token_file", "server": "api_keys_file"}[section]
        refused = list(exposed(Config(**{section: build(listen=listen)})))
        assert [key in why for why in refused] == ([] if local else [True])
        assert not list(exposed(Config(**{section: build(listen=listen, **{key: tmp_path})})))


def test_which_names_a_listener_answers_to():
    """Test that one on loopback knows its own and those that are listed, and others take any."""
    server = lambda: ServerSection(allowed_hosts=("llm.example",))  # noqa: E731
    at_home = host_rule("127.0.0.2:1", server)
    assert [at_home(name) for name in ("127.0.0.2", "llm.example", "evil.example")] == [True, True, False]
    assert host_rule("10.0.0.1:1", server)("evil.example")
    assert host_rule("unix:/x", server)("specd")
