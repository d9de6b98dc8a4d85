"""Tokens to text, one step at a time, with stop strings. Used by the engine to find where a text ends and by the
daemon to stream it: both see the same text because both use this class. Imports no torch.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engine.api import Request

_CONTEXT: Final = 6


class TextStream:
    """Incremental text of one generated sequence.

    Text that may be the beginning of a stop string is held back until the next tokens decide it, and bytes of an
    unfinished character until they are whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        prompt: Sequence[int] = (),
        *,
        stop_tokens: Collection[int] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """The prompt's last tokens decide how the first token reads: many vocabularies mark spaces on words.

        stop, stop_tokens: what ends the text, itself no part of it unless `include_stop`. A stop string that is
        complete within the first `min_tokens` tokens ends nothing; one that only begins there does.
        """
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT:])
        self._before = tokenizer.decode(self._tokens, skip_special_tokens=True)
        self._decoder = DecodeStream(ids=self._tokens, skip_special_tokens=True)
        self._shown: list[str] = []  # decoded so far, whether given out or held back
        self._held = ""
        self._stop = stop
        self._most_undecided = max((len(each) for each in stop), default=1) - 1
        self._stop_tokens = stop_tokens
        self._include_stop = include_stop
        self._early = min_tokens  # tokens to come before a stop string counts
        self.stopped = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, request: Request) -> "TextStream":
        """The text of one request, from its first generated token on."""
        sampling = request.sampling
        return cls(
            tokenizer,
            sampling.stop,
            request.prompt if request.continues else (),
            stop_tokens=frozenset(sampling.stop_tokens),
            include_stop=sampling.include_stop,
            min_tokens=sampling.min_tokens,
        )

    def push(self, tokens: Iterable[int]) -> str:
        """Feed tokens; returns the text that is now certain. After a stop has been completed, nothing more."""
        for token in tokens:
            if self.stopped:
                break
            self._take(token)
        return self._release()

    def flush(self) -> str:
        """The sequence has ended: everything still held back, an unfinished character as U+FFFD."""
        if not self.stopped:
            self._find_stop(self._finish())
        text, self._held = self._held, ""
        return text

    def _take(self, token: int) -> None:
        ends = token in self._stop_tokens
        if ends and not self._include_stop:
            self._finish()
        else:
            self._tokens.append(token)
            piece = self._decoder.step(self._tokenizer, token) or ""
            self._shown.append(piece)
            self._held += piece
            self._early -= 1
            self._find_stop(len(piece))
        self.stopped |= ends

    def _finish(self) -> int:
        """Hold an unfinished character as it is; the number of characters that this adds."""
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        given = "".join((self._before, *self._shown))
        rest = whole[len(given) :] if whole.startswith(given) else ""
        self._held += rest
        return len(rest)

    def _find_stop(self, new: int) -> None:
        """Cut the held text at the stop string that is complete first, if its last `new` characters complete one."""
        if self._early >= 0 or not self._stop:
            return
        old = len(self._held) - new
        begins = [(self._held.find(stop, max(old - len(stop) + 1, 0)), len(stop)) for stop in self._stop]
        found = [(begin + length, begin) for begin, length in begins if begin >= 0]
        if found:
            end, begin = min(found)
            self._held = self._held[: end if self._include_stop else begin]
            self.stopped = True

    def _release(self) -> str:
        keep = 0 if self.stopped else self._undecided()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _undecided(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(self._most_undecided, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
