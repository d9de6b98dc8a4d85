"""Prompts to tokens, off the event loop. Reads a model directory's tokenizer and chat template; no torch."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from engine.token_bytes import TokenBytes
from specd.errors import ModelError
from specd.http.chat_template import Chat, ChatTemplate
from specd.http.errors import ApiError
from specd.http.room import Room, Shortest
from specd.models.cache import hashes
from specd.models.directory import chat_template

_NO_TEMPLATE: Final = (
    "this model has no chat template: use /v1/completions,"
    " or put a chat_template.jinja beside its weights and restart"
)


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Turns what a client sends into what the engine takes."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    token_bytes: TokenBytes
    shortest: Shortest
    digest: str = ""
    """Of the tokenizer's file."""

    @classmethod
    def load(cls, directory: Path, like: Self | None = None) -> Self:
        """Read the directory; takes a second or so, and 30 MiB, unless it has the tokenizer of one that is there, which
        is shared then. Raises `ModelError`.
        """
        settings = _json(directory / "tokenizer_config.json")
        source = chat_template(directory)
        template = None if source is None else ChatTemplate.load(source, _special_tokens(settings))
        file = directory / "tokenizer.json"
        digest = _digest(file)
        if like is not None and like.digest == digest:
            return replace(like, template=template)
        tokenizer = _tokenizer(file)
        return cls(tokenizer, template, TokenBytes(tokenizer), Shortest.of(tokenizer), digest)

    async def text(self, prompt: str, room: Room) -> list[int]:
        """A plain prompt, with the special tokens that the model wants around one. Raises `ApiError` when it is far too
        long for the room.
        """
        return await asyncio.to_thread(self._encode, prompt, special=True, room=room)

    async def chat(self, chat: Chat, room: Room) -> list[int]:
        """A chat, up to where the assistant goes on. Raises likewise, and when it cannot be rendered."""
        return await asyncio.to_thread(self._encode_chat, chat, room)

    def message(self, text: str) -> list[int]:
        """What a user says, as a chat where the model knows chats; blocking. Raises `ApiError`."""
        if self.template is None:
            return self._encode(text, special=True)
        return self._encode_chat(Chat([{"role": "user", "content": text}]))

    def plain(self, text: str) -> list[int]:
        """A text as it is; blocking."""
        return self._encode(text, special=True)

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises `ApiError` if the model has none."""
        if self.template is None:
            raise ApiError(400, _NO_TEMPLATE, code="no_chat_template")
        return self.template

    def check(self, tokens: Iterable[int], param: str) -> None:
        """Raises `ApiError` for a token of the client's that does not exist."""
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        beyond = next((token for token in tokens if token >= size), None)
        if beyond is not None:
            message = f"{param}: token id {beyond} is beyond the vocabulary, which has {size} tokens"
            raise ApiError(400, message, param=param, code="invalid_value")

    def _encode(self, text: str, *, special: bool, room: Room | None = None) -> list[int]:
        if room is not None:
            room.check(self.shortest.tokens(text), counted=False)
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def _encode_chat(self, chat: Chat, room: Room | None = None) -> list[int]:
        # The template has written the special tokens itself.
        return self._encode(self.chat_template.text(chat), special=False, room=room)


def _digest(file: Path) -> str:
    try:
        (digest,) = hashes().sha256([file])
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror})"
        raise ModelError(f"{why}: specd needs the tokenizer in this format, save the model with it") from None
    return digest


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises nothing more precise
        raise ModelError(f"{file} cannot be read ({error}): fetch or save it again") from None
    # Files saved after training may still cut or pad every text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Written as a string or as an object with its `content`."""
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token")
    }
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}): fetch or save it again") from None
    return value if isinstance(value, dict) else {}
