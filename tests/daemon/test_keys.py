"""Files of keys: what may stand in them, who a key's holder is, and that the daemon follows them."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from specd.cli import main
from specd.errors import UserError
from specd.http.keys import ANYBODY, Caller, Keys, digest, line_of, new_key, plain_key
from tests.daemon.conftest import until

SETTING = "server.api_keys_file"


def keys(tmp_path: Path, text: str) -> Keys:
    file = tmp_path / "keys"
    file.write_text(text)
    return Keys(file, SETTING)


def test_keys_are_taken_plain_and_hashed_with_what_stands_behind_them(tmp_path):
    """Test that each line opens for its key, says whose it is, and a hash does not open for itself."""
    hashed = f"sha256:{digest('second').hex()}"
    found = keys(tmp_path, f"# ours\nfirst\n\n  {hashed}  tenant=acme name=laptop\nthird tenant=b\n")
    assert found.caller("Bearer first") == ANYBODY
    assert found.caller("bearer second") == Caller("acme", "laptop")
    assert found.caller("Bearer third") == Caller("b")
    for wrong in (
        "",
        "first",
        "Basic first",
        f"Bearer {hashed}",
        "Bearer ours",
        "Bearer tenant=b",
        "Bearer ",
    ):
        assert found.caller(wrong) is None


def test_without_a_file_everybody_may_come_in():
    """Test that no key is asked for then."""
    assert Keys(None, SETTING).caller("") == ANYBODY


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n# nothing\n", "is empty: put one key a line there"),
        ("secret1 secret2\n", "line 1: a key may be followed by tenant=NAME and name=NAME"),
        ("good\nsecret1 tenant=a tenant=b\n", "line 2: a key may be followed by"),
        ("secret1 tenant=a\u200bb\n", "line 1: a key may be followed by"),
        ("sha256:secret1\n", "line 1: sha256: is followed by 64 hexadecimal digits"),
        ("secret1\nother\nsecret1 tenant=a\n", "lines 1 and 3 are the same key"),
    ],
)
def test_a_fault_is_told_by_its_line_and_shows_no_key(tmp_path, text, words):
    """Test that each fault is a sentence without what stands there."""
    with pytest.raises(UserError) as fault:
        keys(tmp_path, text)
    assert words in str(fault.value)
    assert "secret1" not in str(fault.value)


def test_a_new_key_opens_by_its_line(tmp_path, capsys):
    """Test that `specd keys new` prints the key to stderr, its line to stdout, and both belong together."""
    assert main(["keys", "new", "--tenant", "acme", "--name", "ci"]) == 0
    key, line = (text.strip() for text in reversed(capsys.readouterr()))
    assert key.startswith("specd-")
    assert key not in line
    assert keys(tmp_path, line).caller(f"Bearer {key}") == Caller("acme", "ci")
    assert new_key() != key


def test_a_line_is_made_for_a_key_that_there_is(tmp_path, capsys, monkeypatch):
    """Test that `specd keys hash` reads the key from stdin."""
    file = tmp_path / "key"
    file.write_text("my own\n")
    with file.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["keys", "hash"]) == 0
    assert keys(tmp_path, capsys.readouterr().out).caller("Bearer my own") == ANYBODY


def test_a_name_that_no_line_can_hold_is_refused():
    """Test that a tenant cannot bring fields of its own into the line."""
    with pytest.raises(UserError, match="letters, digits"):
        line_of("k", Caller("a name=b"))


def test_the_token_that_the_command_line_sends(tmp_path):
    """Test that it is the first that stands there as it is, and that hashes alone are refused with what to do."""
    file = tmp_path / "token"
    file.write_text(f"# admin\nsha256:{digest('a').hex()}\nplain tenant=ops\n")
    assert plain_key(file, "admin.token_file") == "plain"
    file.write_text(f"sha256:{digest('a').hex()}\n")
    with pytest.raises(UserError, match=r"holds hashes only, which open nothing: .* --token-file"):
        plain_key(file, "admin.token_file")


async def test_the_file_is_followed(tmp_path, caplog):
    """Test that new keys count once they are written, and that a broken or missing file changes nothing, said once."""
    file = tmp_path / "keys"
    found = keys(tmp_path, "first\n")
    following = asyncio.create_task(found.follow(every=0.01))
    with caplog.at_level(logging.INFO, "specd.http.keys"):
        file.write_text("second\n")
        await until(lambda: found.caller("Bearer second"))
        assert found.caller("Bearer first") is None
        file.unlink()
        await until(lambda: "the keys in force stay" in caplog.text)
        await asyncio.sleep(0.05)
        assert found.caller("Bearer second") == ANYBODY
        file.write_text("third\n")
        await until(lambda: found.caller("Bearer third"))
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert caplog.text.count("the keys in force stay") == 1
    assert "another set of keys is in force, 1 in all" in caplog.text
    assert not any(key in caplog.text for key in ("first", "second", "third"))
