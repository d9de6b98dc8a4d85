"""The engine process beside a vLLM of others: where it cannot listen, and whose revision it would tell."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from engine import exits
from engine.api import FromEngine, Launch, Loading, Ready, Refused
from engine.vllm.beside import Beside, other_target
from engine.vllm.link import Link
from engine.wire import frame, read_from_engine
from tests.messages import a_ready


class Daemon:
    """One end, and a process that is none at the other."""

    def __init__(self, reader: asyncio.StreamReader, beside: "asyncio.Task[int]") -> None:
        self._reader = reader
        self.beside = beside

    async def told(self, kind: type[FromEngine]) -> FromEngine:
        """The first message of this kind."""
        while not isinstance(message := await read_from_engine(self._reader), kind):
            """Something else."""
        return message


@contextlib.asynccontextmanager
async def launched(meeting: Path, target: Path):
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    process = await asyncio.open_unix_connection(sock=theirs)
    beside = asyncio.create_task(Beside(*process).run())
    writer.write(frame(Launch(model_path=str(target), vllm_options={"socket": str(meeting)})))
    try:
        yield Daemon(reader, beside)
    finally:
        for one in (writer, process[1]):
            one.close()
        await asyncio.gather(beside, return_exceptions=True)


@pytest.mark.parametrize(
    "path",
    ["nowhere/s", "file", "file/s", f"{'long' * 40}"],
    ids=["missing", "a file", "in a file", "too long"],
)
async def test_a_path_at_which_nobody_can_listen_is_refused(tmp_path, path):
    """Test that the daemon is told which key to change, and that no file is lost for a socket."""
    file = tmp_path / "file"
    file.write_text("kept")
    async with launched(tmp_path / path, tmp_path) as daemon:
        refused = await daemon.told(Refused)
        assert f"engine.vllm.socket: nobody can listen at {tmp_path / path}" in refused.message
        assert await daemon.beside == exits.REFUSED
    assert file.read_text() == "kept"


async def test_a_socket_that_was_left_is_replaced(tmp_path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / "s"))
    async with launched(tmp_path / "s", tmp_path) as daemon:
        assert "waiting for the scheduler" in (await daemon.told(Loading)).message
        link = Link(str(tmp_path / "s"), a_ready(model_path="org/name"))
        assert (await daemon.told(Ready)).model_path == str(tmp_path), "under the name that the daemon knows"
        link.close()


async def test_a_vllm_that_serves_another_directory_is_refused(tmp_path):
    """Test that nothing is reported under a revision that is not served."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with launched(tmp_path / "s", tmp_path / "one") as daemon:
        await daemon.told(Loading)
        link = Link(str(tmp_path / "s"), a_ready(model_path=str(tmp_path / "two")))
        refused = await daemon.told(Refused)
        assert f"vLLM serves {tmp_path / 'two'}" in refused.message
        assert await daemon.beside == exits.REFUSED
        link.close()


def test_directories_are_compared_and_names_are_not(tmp_path):
    """Test that a link to the same files is the same target, and that what is no directory here says nothing."""
    (tmp_path / "files").mkdir()
    (tmp_path / "link").symlink_to("files")
    ours = str(tmp_path / "files")
    assert other_target(str(tmp_path / "link"), ours) is None
    assert other_target("org/name", ours) is None
    assert other_target("/models/of/another/machine", ours) is None
    assert other_target(str(tmp_path), ours) is not None
