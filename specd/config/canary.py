"""`[canary]`: fixed prompts, replayed when the target changes, by which a draft that no longer fits is found out."""

from pathlib import Path
from typing import Final, Self

import msgspec
from pydantic import PrivateAttr, model_validator

from specd.config.section import Section, hot

_MOST: Final = 1000


class CanarySection(Section):
    """Prompts that are replayed before an updated target takes traffic: docs/updates.md."""

    enabled: bool = hot(
        True,
        "replay at each update, and once at the first start, when nobody is served; a replay can be asked for at any "
        "time",
    )
    prompts: Path | None = hot(
        None,
        'a file with a JSON object a line, each with a text as "prompt"; unset takes the 48 of the package. Read again '
        "at each reload",
    )
    tokens: int = hot(48, "of each answer that is replayed", ge=8, le=1024)
    k: int = hot(2, "levels of each draft", ge=1, le=16)
    tolerance: float = hot(0.02, "acceptance may fall by so much", ge=0, lt=1)
    confidence: float = hot(0.99, "with which it must be known to have fallen at all", gt=0.5, lt=1)
    _texts: tuple[str, ...] | None = PrivateAttr(default=None)

    @property
    def texts(self) -> tuple[str, ...] | None:
        """What `prompts` says, as it was when the config was read; None for the package's."""
        return self._texts

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.prompts is not None:
            self._texts = read_prompts(self.prompts.expanduser())
        return self


def read_prompts(file: Path) -> tuple[str, ...]:
    """Raises ValueError with a sentence."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(
            f"{file} cannot be read ({why}): put a JSON object with a prompt on each line"
        ) from None
    found = tuple(_prompt(file, number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not found:
        raise ValueError(
            f"{file} holds no prompts: put a JSON object with a prompt on each line, or unset the key"
        )
    if len(found) > _MOST:
        raise ValueError(
            f"{file} holds {len(found)} prompts and at most {_MOST} are replayed: leave some out"
        )
    if len(set(found)) < len(found):
        twice = next(text for text in found if found.count(text) > 1)
        raise ValueError(f"{file} holds the prompt {twice[:40]!r} twice: once is enough")
    return found


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        text = msgspec.json.decode(line, type=_Line).prompt
    except msgspec.MsgspecError:
        raise ValueError(f'{file}, line {number}: write it as {{"prompt": "…"}}') from None
    if not text.strip():
        raise ValueError(f"{file}, line {number}: the prompt is empty: write one, or take the line out")
    return text


class _Line(msgspec.Struct):
    prompt: str
