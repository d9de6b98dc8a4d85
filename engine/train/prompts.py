"""What a head is trained on: prompts, as a file of JSON lines or made from what is on every machine.

A line has `messages` (a chat), or `prompt` (text to continue), or `opening` (the beginning of a user's turn that the
target itself goes on with, so that it asks what it was trained to be asked). `class` and `temperature` are optional;
`turns` (with `opening`) lets the target ask again after its answer.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from engine.train import openings as openings_of
from engine.train.errors import TrainError
from engine.train.material import Material

Message = dict[str, str]
Class = Literal["chat", "code", "documents", "recorded"]
T = TypeVar("T")
_SAMPLED: Final = 0.7
_GREEDY_SHARE: Final = 0.6
_RAW_SHARE: Final = 0.25  # of code that is to be completed: most comes as a user's message


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a prompts file; see the module."""

    messages: list[Message] | None = None
    prompt: str | None = None
    opening: str | None = None
    turns: int = 1
    traffic_class: Class = msgspec.field(default="recorded", name="class")
    temperature: float = 0.0


def read(path: Path) -> list[Prompt]:
    """The prompts of a file. Raises TrainError with the first line that is none."""
    decoder = msgspec.json.Decoder(Prompt)
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompt = decoder.decode(line)
        except msgspec.DecodeError as fault:
            raise TrainError(f"{path}, line {number}: {fault}") from None
        if sum(each is not None for each in (prompt.messages, prompt.prompt, prompt.opening)) != 1:
            raise TrainError(f"{path}, line {number}: give one of messages, prompt and opening")
        found.append(prompt)
    return found


def builtin(count: int, seed: int, material: Material | None = None) -> list[Prompt]:
    """So many prompts, always the same for the same seed on the same machine: half chat, a third code, documents.

    Sources are the target itself, the standard library's source and docstrings, and what the system's documentation
    has in /usr/share.
    """
    draw = random.Random(seed)  # noqa: S311  an order, not a secret
    makers = _Makers(draw, material or Material.of_this_machine())
    weights = {makers.asked: 54, makers.begun: 10, makers.completed: 11, makers.about_code: 6,
               makers.about_text: 13, makers.translated: 6}  # fmt: skip
    kinds = draw.choices(list(weights), list(weights.values()), k=count)
    return [_tempered(kind(), draw) for kind in kinds]


def _tempered(prompt: Prompt, draw: random.Random) -> Prompt:
    temperature = 0.0 if draw.random() < _GREEDY_SHARE else _SAMPLED
    return msgspec.structs.replace(prompt, temperature=temperature)


class _Makers:
    """One method per kind of prompt."""

    def __init__(self, draw: random.Random, material: Material) -> None:
        self._draw = draw
        self._functions = _forever(material.functions, draw)
        self._passages = _forever(material.passages, draw)
        self._german = _forever(material.german, draw)
        self._german_known = bool(material.german)

    def asked(self) -> Prompt:
        """The target asks, of anything or after an opening, and sometimes once more."""
        of_code = self._draw.random() < 0.16
        openings = openings_of.CODE if of_code else openings_of.CHAT
        opening = self._draw.choice(openings) if of_code or self._draw.random() < 0.8 else ""
        turns = 2 if self._draw.random() < 0.15 else 1
        return Prompt(opening=opening, turns=turns, traffic_class="code" if of_code else "chat")

    def begun(self) -> Prompt:
        """A function that does not exist: the target writes its docstring, and its body as a text or as an answer."""
        name = f"{self._draw.choice(openings_of.VERBS)}_{self._draw.choice(openings_of.NOUNS)}"
        head = self._draw.choice(("from typing import List\n\n\n", "", "\n\n", "import math\n\n\n"))
        doc = self._draw.choice(openings_of.DOCSTRINGS)
        signature = f"def {name}({self._draw.choice(openings_of.PARAMETERS)}:\n"
        beginning = f'{head}{signature}    """{doc}'
        if self._draw.random() < _RAW_SHARE:
            return Prompt(prompt=beginning, traffic_class="code")
        return Prompt(opening=beginning, traffic_class="code")

    def completed(self) -> Prompt:
        """A function of the standard library up to the end of its docstring."""
        head = next(self._functions).head
        if self._draw.random() < _RAW_SHARE:
            return Prompt(prompt=head, traffic_class="code")
        return _user(self._draw.choice(openings_of.COMPLETE).format(head), "code")

    def about_code(self) -> Prompt:
        """A request over a function's source."""
        source = next(self._functions).source
        return _user(self._draw.choice(openings_of.ABOUT_CODE).format(source), "code")

    def about_text(self) -> Prompt:
        """A request over a passage of documentation."""
        return _user(self._draw.choice(openings_of.ABOUT_TEXT).format(next(self._passages)), "documents")

    def translated(self) -> Prompt:
        """German from translated programs, or begun by us and continued by the target."""
        frame = self._draw.choice(openings_of.TRANSLATE)
        if self._german_known and self._draw.random() < 0.6:
            text = " ".join(next(self._german) for _ in range(self._draw.randint(1, 3)))
            return _user(frame.format(text), "documents")
        return Prompt(opening=frame.format(self._draw.choice(openings_of.GERMAN)), traffic_class="documents")


def _user(text: str, traffic_class: Class) -> Prompt:
    return Prompt(messages=[{"role": "user", "content": text}], traffic_class=traffic_class)


def _forever(items: Sequence[T], draw: random.Random) -> Iterator[T]:
    """All of them, shuffled, again and again."""
    while items:
        yield from draw.sample(items, len(items))
