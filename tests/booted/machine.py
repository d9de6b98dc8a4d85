"""A machine with a systemd of its own: PID 1 of private namespaces, over this machine's files.

Whatever it writes is in memory and gone with it. specd lies in /opt/specd, as the README installs it: this checkout, on
the packages that the tests run on. Of this machine it shares processors, memory and kernel, not network and processes.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.daemon import daemon_process
from tests.daemon.daemon_process import ROOT, wait_until

T = TypeVar("T")

BOOT: Final = Path(__file__).with_name("boot.sh")
PREFIX: Final = "/opt/specd"
SOURCE: Final = f"{PREFIX}/src"
_INTERPRETER: Final = f"{PREFIX}/python"
_NEWNET: Final = 0x40000000
_CHECKOUT: Final = ("engine", "policies", "specd", "systemd", "tests")
_PROGRAMS: Final = ("nsenter", "pivot_root", "setpriv", "systemctl", "unshare")
_SYSTEMD: Final = (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd"))


def unavailable_reason() -> str | None:
    """Why no systemd can be booted here."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0:
        return "booting a systemd needs root: run the tests as root"
    if missing or not any(map(Path.exists, _SYSTEMD)):
        return f"booting a systemd needs Debian's packages systemd and util-linux: {missing or 'systemd'} not found"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "booting a systemd needs overlayfs in the kernel: modprobe overlay"
    if _cgroups() is None:
        return "booting a systemd needs a writable cgroup2 hierarchy: mount one, or leave the container"
    probe = [
        "unshare",
        "--fork",
        "--pid",
        "--mount",
        "--net",
        "--cgroup",
        "mount",
        "-t",
        "tmpfs",
        "x",
        "/mnt",
    ]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "booting a systemd needs namespaces and mounts of its own, which are forbidden here"
    return None


def _cgroups() -> Path | None:
    """Where the hierarchy of version 2 is mounted, and can be written."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = (
        Path(where)
        for _, where, kind, options, *_ in mounts
        if kind == "cgroup2" and "rw" in options.split(",")
    )
    return next((path for path in found if os.access(path, os.W_OK)), None)


class Machine:
    """Booted at once. Paths are as they are inside."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "console"
        parent = _cgroups()
        assert parent is not None
        self._cgroup = Path(tempfile.mkdtemp(prefix="specd-test-", dir=parent))
        self._cgroup.chmod(0o755)  # as a machine's own root is: services look there for their limits
        with self._log.open("w") as log:
            self._outer = subprocess.Popen(
                [*_unshare(self._cgroup), str(BOOT), str(directory), *_mounts()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.pid = wait_until(self._init, "systemd to be process 1")
            wait_until(lambda: self._state() in {"running", "degraded"}, "systemd to be up")
        except BaseException:
            self._end()
            raise
        self._threads = ThreadPoolExecutor(8, "inside", initializer=_enter_network, initargs=(self.pid,))
        self._install()

    def _init(self) -> int | None:
        """The process that has become systemd: before that, it still sees what this machine sees."""
        assert self._outer.poll() is None, self._log.read_text()
        outer = self._outer.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        booted = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "systemd\n"]
        return booted[0] if booted else None

    def _state(self) -> str:
        return self.run("systemctl", "is-system-running").stdout.strip()

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """As root, inside."""
        namespaces = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd")
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", *namespaces, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=daemon_process.DEADLINE,
            env={"PATH": f"{PREFIX}/bin:/usr/sbin:/usr/bin:/sbin:/bin", **_ENVIRONMENT, **(env or {})},
        )

    def succeed(self, *command: str) -> str:
        """The same, of a command that is to succeed; its output."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def at(self, path: str) -> Path:
        """A path inside, as this process can read and write it."""
        return Path(f"/proc/{self.pid}/root") / path.removeprefix("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file, and the directories above it."""
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def inside(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> "Future[T]":
        """Do this in a thread that is in the machine's network. A socket stays in the network in which it was made."""
        return self._threads.submit(work, *args, **kwargs)

    def _install(self) -> None:
        """What `pip install` and `install -m 644 systemd/…` leave behind, compiled for whoever cannot write it."""
        home = f"{_INTERPRETER}/bin" if _moved() else str(Path(sys.base_prefix) / "bin")
        self.write(f"{PREFIX}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n")
        for name in _CHECKOUT:
            shutil.copytree(
                ROOT / name, self.at(f"{SOURCE}/{name}"), ignore=shutil.ignore_patterns("__pycache__")
            )
        (self.at(PREFIX) / "bin").mkdir(exist_ok=True)
        (self.at(PREFIX) / "bin/python").symlink_to(f"{home}/{Path(sys.executable).resolve().name}")
        for unit in (ROOT / "systemd").glob("specd*.*"):
            if unit.suffix in {".service", ".target"}:
                self.write(f"/etc/systemd/system/{unit.name}", unit.read_text())
        environment = " ".join(f"{name}={value}" for name, value in _ENVIRONMENT.items())
        self.write("/run/systemd/system.conf.d/tests.conf", f"[Manager]\nDefaultEnvironment={environment}\n")
        self.succeed("systemctl", "daemon-reload")
        self.succeed(
            f"{PREFIX}/bin/python", "-c", "import specd.daemon, specd.cli.reload, tests.daemon.fake_engine"
        )

    def close(self) -> None:
        """The end of all of it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _end(self) -> None:
        self._outer.kill()  # which takes process 1 along, and that all others
        self._outer.wait()
        wait_until(lambda: _removed(self._cgroup), "the control groups to be empty")


def _removed(group: Path) -> bool:
    """Innermost first; a group of which a process is not quite gone yet refuses."""
    for inner, *_ in os.walk(group, topdown=False):
        try:
            Path(inner).rmdir()
        except OSError:
            return False
    return not group.exists()


def _unshare(cgroup: Path) -> list[str]:
    """A command before a command: namespaces of its own, rooted in this control group, and an end with this process."""
    join = 'echo 0 >"$1/cgroup.procs"; shift; exec unshare --cgroup -- "$@"'
    spaces = ("--pid", "--mount", "--uts", "--ipc", "--net")
    outer = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *spaces]
    return [*outer, "--", "sh", "-c", join, "join", str(cgroup)]


def _moved() -> bool:
    """Whether the interpreter lies where a service may not look, or where a machine may have a disk of its own."""
    return not sys.base_prefix.startswith("/usr")


def _mounts() -> Sequence[str]:
    """For boot.sh: interpreter and packages."""
    packages = Path(sysconfig.get_path("purelib"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    mounts = {str(packages): f"{PREFIX}/lib/{version}/site-packages"}
    if _moved():
        mounts[sys.base_prefix] = _INTERPRETER
    return [path for pair in mounts.items() for path in pair]


_ENVIRONMENT: Final = {
    "PYTHONPATH": SOURCE,  # this checkout, wherever the packages' own entry for it leads
    "LD_LIBRARY_PATH": f"{_INTERPRETER}/lib",  # where an interpreter that was moved finds its own
    "OMP_NUM_THREADS": "1",
    "LANG": "C.UTF-8",
}


def _enter_network(pid: int) -> None:
    """For this thread alone; Python knows setns from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as network:
        if libc.setns(network.fileno(), _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "the network of the booted machine cannot be entered")


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """A machine for as long as the context lasts."""
    machine = Machine(directory)
    try:
        yield machine
    finally:
        machine.close()


def now() -> str:
    """For `journalctl --since`."""
    return f"@{time.time():.6f}"
