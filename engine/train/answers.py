"""The target answers the prompts, in process and without drafts; finished texts are appended to a file of JSON lines.

Resumable: a prompt is done when its line is complete. What a kill left half-written is cut off before going on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from transformers import AutoConfig

from engine.api import DraftSettings, Launch, Output, Request, SamplingParams
from engine.core import Engine
from engine.start import start
from engine.train.job import Job
from engine.train.prompts import Class, Message, Prompt
from policies.settings import PolicySettings

ANSWER_TOKENS: Final = 288
_QUESTION_TOKENS: Final = 160
_QUESTION_TEMPERATURE: Final = 0.8
_LONGEST_PROMPT: Final = 1_024
_LOOP, _LONGEST_PERIOD = 80, 40  # tokens
_MARK: Final = "\x00"


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and what the target said to it: one line of the file."""

    number: int
    """The prompt's place in the prompts file."""
    traffic_class: Class
    temperature: float
    prompt: list[int]
    answer: list[int]


class Tokenizer(Protocol):
    """What is used of transformers' tokenizers."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text to ids."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Ids to text."""

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        """Messages to text."""


def read(path: Path) -> list[Text]:
    """All complete lines of a file, none if there is no file."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Text)
    return [decoder.decode(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _cut_half_line(path: Path) -> None:
    """What a kill left of the last line."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


@dataclass
class _Talk:
    """A prompt while it is answered: the target's own question first, where it has only an opening."""

    number: int
    prompt: Prompt
    messages: list[Message] = field(default_factory=list)
    turns: int = 1
    asks: bool = False
    ids: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, prompt: Prompt) -> "_Talk":
        asks = prompt.opening is not None
        return cls(number, prompt, list(prompt.messages or []), prompt.turns, asks)

    def heard(self, text: str) -> bool:
        """Take what the target said into the chat. False when all has been said."""
        if self.asks:
            self.messages.append({"role": "user", "content": (self.prompt.opening or "") + text})
            self.asks = False
            return True
        self.messages.append({"role": "assistant", "content": text})
        self.turns -= 1
        self.asks = self.turns > 0
        return self.asks


class Answering:
    """Keeps an engine full of talks until a budget of answered tokens is reached or the prompts end."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, path: Path, *, width: int) -> None:
        """width: requests in flight, running and waiting."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._width = width
        done = read(path)
        self._done = {text.number for text in done}
        self.tokens = sum(len(text.answer) for text in done)
        self._path = path
        _cut_half_line(path)
        self._talks: dict[str, _Talk] = {}

    def run(self, prompts: Sequence[tuple[int, Prompt]], tokens: int) -> Iterator[int]:
        """Answer until so many tokens are there; yields their number whenever it grows."""
        waiting = iter([_Talk.of(*each) for each in prompts if each[0] not in self._done])
        while self.tokens < tokens:
            while len(self._talks) < self._width and (talk := next(waiting, None)) is not None:
                self._say(talk)
            if not self._engine.has_work:
                return
            before = self.tokens
            for output in self._engine.step().outputs:
                self._take(output)
            if self.tokens > before:
                yield self.tokens

    def _say(self, talk: _Talk) -> None:
        talk.ids, talk.said = self._ids(talk), []
        if not 0 < len(talk.ids) <= _LONGEST_PROMPT:
            return
        self._talks[str(talk.number)] = talk
        greedy = SamplingParams(
            max_tokens=ANSWER_TOKENS, temperature=talk.prompt.temperature, seed=talk.number
        )
        question = SamplingParams(
            max_tokens=_QUESTION_TOKENS, temperature=_QUESTION_TEMPERATURE, seed=talk.number
        )
        self._engine.submit(
            Request(id=str(talk.number), prompt=talk.ids, sampling=question if talk.asks else greedy)
        )

    def _ids(self, talk: _Talk) -> list[int]:
        if talk.prompt.prompt is not None:
            return self._tokenizer.encode(talk.prompt.prompt)
        messages = talk.messages
        if talk.asks:
            messages = [*messages, {"role": "user", "content": (talk.prompt.opening or "") + _MARK}]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not talk.asks
        )
        return self._tokenizer.encode(text.split(_MARK)[0], add_special_tokens=False)

    def _take(self, output: Output) -> None:
        talk = self._talks.get(output.id)
        if talk is None:
            return
        talk.said += output.tokens
        if output.finish is None:
            if len(talk.said) % 16 == 0 and loops(talk.said):
                self._engine.cancel(output.id)
                self._end(talk, "cancelled")
            return
        self._end(talk, output.finish)

    def _end(self, talk: _Talk, finish: str) -> None:
        del self._talks[str(talk.number)]
        if finish == "cancelled":
            talk.said = talk.said[: 32 - _LOOP]
        if finish == "error" or (talk.asks and finish != "stop"):
            return
        ids = talk.said
        if talk.prompt.prompt is None and talk.heard(self._tokenizer.decode(ids, skip_special_tokens=True)):
            self._say(talk)
            return
        self._write(talk)

    def _write(self, talk: _Talk) -> None:
        text = Text(
            number=talk.number,
            traffic_class=talk.prompt.traffic_class,
            temperature=talk.prompt.temperature,
            prompt=talk.ids,
            answer=talk.said,
        )
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(text) + b"\n")
        self.tokens += len(talk.said)


def loops(tokens: list[int]) -> bool:
    """Whether the end of a text has repeated itself for long: greedy texts of small models do."""
    tail = tokens[-_LOOP:]
    return len(tail) == _LOOP and any(
        tail[period:] == tail[:-period] for period in range(1, _LONGEST_PERIOD + 1)
    )


def engine_for(job: Job, *, running: int) -> Engine:
    """A plain engine of one thread that runs so many texts together."""
    launch = Launch(
        model_path=job.target,
        dtype=job.dtype,
        threads=1,
        max_running=running,
        max_batch_tokens=512,
        rows_beside_decodes=256,
        kv_bytes=running * (_LONGEST_PROMPT + ANSWER_TOKENS) * _position_bytes(job),
        cache_dir=job.cache,
        draft=DraftSettings(kinds=()),
        policy=PolicySettings(kind="off"),
    )
    return start(launch, lambda _: None)


def _position_bytes(job: Job) -> int:
    """Of keys and values, at most."""
    config = AutoConfig.from_pretrained(job.target).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * 2 * heads * dim * (4 if job.dtype == "float32" else 2))
