"""What the command line tells of itself: help pages, the manual page, completion in a real shell."""

import os
import pty
import re
import shutil
import subprocess
import sys
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


SETUP = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'source script/bash; bind -x \'"\\C-g": echo "<$READLINE_LINE>"; READLINE_LINE= READLINE_POINT=0\'',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        (
            "autoload -U compinit; compinit -D -u; source script/zsh; "
            "tell() { print; print -r \"<$BUFFER>\"; BUFFER=; }; zle -N tell; bindkey '^G' tell"
        ),
    ),
}
"""How an interactive shell is started, and made to tell at Ctrl-G what stands in the line, which is then empty."""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file and a directory that can be named, and each shell's script in `script`."""
    directory = tmp_path_factory.mktemp("typed")
    (directory / "specd.toml").touch()
    (directory / "model").mkdir()
    (directory / "script").mkdir()
    for shell, scripted in SHELLS.items():
        (directory / "script" / shell).write_text(scripted(TREE[0]))
    return directory


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


@pytest.mark.parametrize(("line", "found"), COMPLETIONS, ids=[line for line, _ in COMPLETIONS])
def test_bash_is_told_what_may_follow(typed: Path, line: str, found: list[str]) -> None:
    """Test that at each place the words are those that argparse would take."""
    words = line + ("''" if line.endswith(" ") else "")
    program = f"compopt() {{ :; }}; source script/bash; COMP_WORDS=({words})"
    program += '; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _specd; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], cwd=typed, capture_output=True, text=True, check=False)
    listed = {each for each in done.stdout.splitlines() if each}
    assert (listed - {"script"}, done.stderr) == (set(found), "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish, which is in Debian's package fish")
@pytest.mark.parametrize(("line", "found"), [each for each in COMPLETIONS if "=" not in each[0]])
def test_fish_is_told_the_same(typed: Path, line: str, found: list[str]) -> None:
    """Test with fish's own answer to what may follow, where it is installed."""
    program = f"source script/fish; complete -C '{line}'"
    environment = os.environ | {"HOME": str(typed / "script"), "XDG_CONFIG_HOME": str(typed / "script")}
    done = subprocess.run(
        ["fish", "-c", program], cwd=typed, env=environment, capture_output=True, text=True, check=False
    )
    listed = {each.split("\t")[0].rstrip("/") for each in done.stdout.splitlines()}
    assert (listed - {"script"}, done.stderr) == (set(found), "")


class Typist:
    """A shell on a terminal of its own."""

    def __init__(self, shell: str, directory: Path) -> None:
        command, setup = SETUP[shell]
        self._master, slave = pty.openpty()
        self._shell = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=os.environ | {"TERM": "dumb", "PS1": "", "HOME": str(directory / "script")},
            start_new_session=True,
        )
        os.close(slave)
        self._send(f"{setup}; echo '<'ready'>'\n")
        self._answer()

    def line_after(self, keys: str) -> str:
        """What the shell has made of them."""
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
        self._shell.kill()
        self._shell.wait()
        os.close(self._master)


@pytest.fixture(params=SETUP)
def typist(typed: Path, request: pytest.FixtureRequest) -> Iterator[Typist]:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}, which is in Debian's package of that name")
    typist = Typist(request.param, typed)
    yield typist
    typist.close()


def test_a_tab_in_a_real_shell_completes(typist: Typist) -> None:
    """Test with a terminal that Tab completes a command, an option, a key without a blank after it, and a file."""
    assert typist.line_after("specd al\tsil\t") == "specd alerts silence "
    assert typist.line_after("specd run --log\tj\t") == "specd run --log-format json "
    assert typist.line_after("specd set policy.k_m\t4") == "specd set policy.k_max=4"
    assert typist.line_after("specd check -c spe\t").rstrip() == "specd check -c specd.toml"
    assert typist.line_after("specd models check mo\t") == "specd models check model/"
