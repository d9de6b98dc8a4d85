"""What the command line tells of itself: help pages, the manual page, completion in a real shell."""

import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.cli import main
from specd.cli.manual import page
from specd.cli.parser import CONFIG
from specd.cli.registry import COMMANDS
from specd.cli.shells import SHELLS
from specd.cli.tree import Place, grown, places

TREE = list(places(grown()))
"""`specd`, its commands and their actions."""

COMPLETIONS = [
    ("specd dra", ["draft"]),
    ("specd models ", ["fetch", "check"]),
    ("specd draft train --ki", ["--kind"]),
    ("specd draft train --kind ", ["eagle3", "medusa", "layer-skip"]),
    ("specd draft train --kind = med", ["medusa"]),
    ("specd run --log-format j", ["json"]),
    ("specd run --set policy.load.off", ["policy.load.off_above="]),
    ("specd set policy.k_m", ["policy.k_max="]),
    ("specd set policy.k_max = ", []),
    ("specd status -c sp", ["specd.toml"]),
    ("specd models check ", ["specd.toml", "model"]),
    ("specd models fetch ", ["demo"]),
    ("specd completion ", ["bash", "zsh", "fish"]),
    ("specd plan --cost ", []),
]
"""What is typed, word by word as bash takes it, and what may follow."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of bash, in a directory with a file and a directory that can be named."""
    directory = tmp_path_factory.mktemp("typed")
    (directory / "specd.toml").touch()
    (directory / "model").mkdir()
    (directory / "script").mkdir()
    file = directory / "script" / "specd"
    file.write_text(SHELLS["bash"](TREE[0]))
    return file


@pytest.mark.parametrize("place", TREE, ids=lambda place: place.path)
def test_every_page_is_whole(place: Place) -> None:
    """Test that each command and each action says what it does, shows how it is called, and names its exit codes, and
    where it reads a config, its files."""
    text = place.parser.format_help()
    assert place.parser.description
    assert all(place.path in line for line in place.parser.examples)
    assert place.parser.examples
    for heading in ("usage: ", "examples:\n", "exit codes:\n"):
        assert heading in text
    if any("--config" in option.names for option in place.options):
        assert all(name in text for name in CONFIG)
    assert all(option.help for option in place.options)


def test_pages_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that what argparse wraps, and what we do, stays within 80 columns; lines to copy may be longer."""
    monkeypatch.setenv("COLUMNS", "80")
    for place in TREE:
        own = {f"  {line}" for line in place.parser.examples} | set(
            (place.parser.description or "").splitlines()
        )
        rest = [line for line in place.parser.format_help().splitlines() if line not in own]
        assert [line for line in rest if len(line) > 80] == [], place.path


def test_only_what_is_typed_is_imported() -> None:
    """Test that the help of one command does not cost the imports of the others."""
    program = (
        "import sys\nfrom specd.cli import main\n"
        "try: main(['schema', '--help'])\nexcept SystemExit: pass\n"
        "assert 'specd.cli.schema' in sys.modules\n"
        "assert not {'specd.bench.cli', 'httpx2', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manual_has_every_page_and_troff_nothing_against_it() -> None:
    """Test that the manual page names each command and option, and that groff, where there is one, warns of nothing."""
    text = page(grown())
    assert all(f".SS {place.path}\n" in text for place in TREE[1:])
    if shutil.which("groff"):
        command = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww"]
        shown = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        plain = re.sub(".\b", "", shown.stdout)
        assert "SPECD(1)" in plain
        assert "specd alerts silence" in plain


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that every command and every long option is in the script, and that the shell, where it is installed, can
    read it."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}" in text for name in COMMANDS)
    for place in TREE:
        for option in place.options:
            assert option.names[-1].lstrip("-") in text
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("typed", "found"), COMPLETIONS, ids=[typed for typed, _ in COMPLETIONS])
def test_bash_is_told_what_may_follow(script: Path, typed: str, found: list[str]) -> None:
    """Test that at each place the words are those that argparse would take."""
    words = typed + ("''" if typed.endswith(" ") else "")
    program = f"compopt() {{ :; }}; source script/specd; COMP_WORDS=({words})"
    program += '; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _specd; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", program], cwd=script.parent.parent, capture_output=True, text=True, check=False
    )
    listed = [line for line in done.stdout.splitlines() if line]
    assert (set(listed) - {"script"}, done.stderr) == (set(found), "")


class Typist:
    """A bash on a terminal of its own."""

    def __init__(self, directory: Path) -> None:
        self._master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=os.environ | {"TERM": "dumb", "PS1": ""},
            start_new_session=True,
        )
        os.close(slave)
        # Ctrl-G tells what stands in the line, and empties it.
        told = '\'"\\C-g": echo "<$READLINE_LINE>"; READLINE_LINE= READLINE_POINT=0\''
        self._send(f"source script/specd; bind -x {told}; echo '<'ready'>'\n")
        self._answer()

    def line_after(self, keys: str) -> str:
        """What bash has made of them."""
        self._send(f"{keys}\x07")
        return self._answer()

    def _send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _answer(self) -> str:
        seen = ""
        while (found := re.search(r"<([^<>'$]*)>\r?\n", seen)) is None:
            seen += os.read(self._master, 1024).decode()
        return found[1]

    def close(self) -> None:
        self._bash.kill()
        self._bash.wait()
        os.close(self._master)


@pytest.fixture
def typist(script: Path) -> Iterator[Typist]:
    typist = Typist(script.parent.parent)
    yield typist
    typist.close()


def test_a_tab_in_a_real_bash_completes(typist: Typist) -> None:
    """Test with a terminal that Tab completes a command, an option, a key without a blank after it, and a file."""
    assert typist.line_after("specd al\tsil\t") == "specd alerts silence "
    assert typist.line_after("specd run --log\tj\t") == "specd run --log-format json "
    assert typist.line_after("specd set policy.k_m\t4") == "specd set policy.k_max=4"
    assert typist.line_after("specd check -c spe\t") == "specd check -c specd.toml "
    assert typist.line_after("specd models check mo\t") == "specd models check model/"
