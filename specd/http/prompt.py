"""Prompts to tokens, off the event loop. Reads a model directory's tokenizer and chat template; no torch."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self

import jinja2
from tokenizers import Tokenizer

from specd.errors import ModelError
from specd.http.errors import ApiError

_NO_TEMPLATE: Final = (
    "this model has no chat template: use /v1/completions,"
    " or put a chat_template.jinja beside its weights and restart"
)


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Turns what a client sends into what the engine takes."""

    tokenizer: Tokenizer
    template: str | None
    render: Callable[..., tuple[list[str], Any]]
    """transformers' own renderer, so that a template means here what it means there."""
    special_tokens: Mapping[str, str]
    """`bos_token` and its like, which templates refer to."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the directory; takes a second or so. Raises `ModelError`."""
        settings = _json(directory / "tokenizer_config.json")
        return cls(
            tokenizer=_tokenizer(directory / "tokenizer.json"),
            template=_template(directory, settings),
            # Takes seconds to import, which must not delay the listeners.
            render=import_module("transformers.utils.chat_template_utils").render_jinja_template,
            special_tokens=_special_tokens(settings),
        )

    async def text(self, prompt: str) -> list[int]:
        """A plain prompt, with the special tokens that the model wants around one."""
        return await asyncio.to_thread(self._encode, prompt, special=True)

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A chat, up to where the assistant's answer begins. Raises `ApiError` when it cannot be rendered."""
        return await asyncio.to_thread(self._encode_chat, messages)

    def checked(self, tokens: list[int]) -> list[int]:
        """Tokens that the client chose itself. Raises `ApiError` for one that does not exist."""
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        beyond = next((token for token in tokens if token >= size), None)
        if beyond is not None:
            message = f"prompt: token id {beyond} is beyond the vocabulary, which has {size} tokens"
            raise ApiError(400, message, param="prompt", code="invalid_value")
        return tokens

    def _encode(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def _encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self.template is None:
            raise ApiError(400, _NO_TEMPLATE, code="no_chat_template")
        try:
            (text,), _ = self.render(
                conversations=[list(messages)],
                chat_template=self.template,
                add_generation_prompt=True,
                **self.special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise ApiError(400, message, param="messages", code="chat_template") from None
        # The template has written the special tokens itself.
        return self._encode(text, special=False)


def _tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise ModelError(
            f"{file} is missing: specd needs the tokenizer in this format, save the model with it"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises nothing more precise
        raise ModelError(f"{file} cannot be read ({error}): fetch or save it again") from None
    # Files saved after training may still cut or pad every text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template}.get("default")
    return template if isinstance(template, str) else None


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
