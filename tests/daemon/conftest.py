"""A fake engine's manners and a tiny tokenizer, for every test of the daemon."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.model_directory import write_model
from tests.daemon.mosquitto import Mosquitto

SPECIALS = ["<s>", "</s>", "<crash>", "<hang>", "<fail>", "<|user|>", "<|end|>"]
"""In the order of their ids; the first five are those of `fake_engine`."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

NO_CANARY = "[canary]\nenabled = false\n"

TOOL_TEMPLATE = (
    CHAT_TEMPLATE + "{% if tools %}{{ tools | tojson }} To call one, write "
    '<tool_call>{"name": …, "arguments": …}</tool_call>{% endif %}'
)
"""Tools stand at the end, so that a test's message comes first in what the fake engine says."""


class FakeEngine:
    """The command of the fake engine, and the file that holds its manners."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.command = (
            sys.executable,
            str(Path(__file__).with_name("fake_engine.py")),
            "--manners",
            str(file),
        )
        self.behave()

    def behave(self, **manners: object) -> None:
        """From its next start on."""
        self._file.write_text(json.dumps(manners))


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other processes and tasks bring about."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.005)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, so that a test can count them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def write_served_model(directory: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """A model directory that passes the daemon's checks and has a tokenizer that works."""
    write_model(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture
def fake_engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / "manners.json")


class Daemons:
    """Starts daemons that serve a fake engine, and ends them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self.engine = FakeEngine(directory / "manners.json")
        self.model = write_served_model(directory / "tiny")

    def start(
        self,
        extra: str = "",
        *,
        server: str = "",
        admin: str = "",
        model: bool = True,
        watch: bool = False,
        **options: object,
    ) -> DaemonProcess:
        """`extra`, `server` and `admin` are lines of TOML. model: serve the tiny one, or what `extra` names. Without
        watch, a reload has to be asked for. Without a section for it there is no canary: it would ask the engine
        whatever the test does not.
        """
        listen = 'listen = "127.0.0.1:0"'
        target = f"[model.target]\npath = {json.dumps(str(self.model))}"
        config = (
            f"[server]\n{'' if 'listen' in server else listen}\n{server}\n"
            f"[admin]\n{'' if 'listen' in admin else listen}\n{admin}\n"
            f"[reload]\nwatch = {json.dumps(watch)}\n"
            f"{'' if '[canary]' in extra else NO_CANARY}"
            f"{target if model else ''}\n{extra}\n"
        )
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        return self._stack.enter_context(DaemonProcess(directory, config, self.engine.command, **options))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with contextlib.closing(Daemons(tmp_path)) as daemons:
        yield daemons


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.close()
