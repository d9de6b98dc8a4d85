"""A fake engine's manners and a tiny tokenizer, for every test of the daemon."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<s>", "</s>", "<crash>", "<hang>", "<fail>", "<|user|>", "<|end|>"]
"""In the order of their ids; the first five are those of `fake_engine`."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.005)


@pytest.fixture
def fake_engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / "manners.json")


def byte_tokenizer() -> Tokenizer:
    """One token a byte, so that a test can count them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes the parts of a model directory that the daemon reads."""

    def make(*, name: str = "tiny", chat_template: str | None = CHAT_TEMPLATE) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        byte_tokenizer().save(str(directory / "tokenizer.json"))
        settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 256}
        if chat_template is not None:
            settings["chat_template"] = chat_template
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        return directory

    return make


@pytest.fixture
def model(make_model: Callable[..., Path]) -> Path:
    return make_model()
