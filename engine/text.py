"""Tokens to text, one step at a time, with stop strings. Used by the engine to find where a text ends and by the
daemon to stream it: both see the same text because both use this class. Imports no torch.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT: Final = 6


class TextStream:
    """Incremental text of one generated sequence.

    Text that may be the beginning of a stop string is held back until the next tokens decide it, and bytes of an
    unfinished character until they are whole.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), prompt: Sequence[int] = ()) -> None:
        """The prompt's last tokens decide how the first token reads: many vocabularies mark spaces on words."""
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT:])
        self._before = tokenizer.decode(self._tokens, skip_special_tokens=True)
        self._decoder = DecodeStream(ids=self._tokens, skip_special_tokens=True)
        self._shown = ""  # decoded so far, whether given out or held back
        self._held = ""
        self._stop = stop
        self.stopped = False

    def push(self, tokens: Iterable[int]) -> str:
        """Feed tokens; returns the text that is now certain. After a stop string has been completed, nothing more."""
        for token in tokens:
            if self.stopped:
                break
            self._tokens.append(token)
            piece = self._decoder.step(self._tokenizer, token)
            if piece:
                self._shown += piece
                self._held += piece
                self._find_stop()
        return self._release()

    def flush(self) -> str:
        """The sequence has ended: everything still held back, an unfinished character as U+FFFD."""
        if not self.stopped:
            whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
            given = self._before + self._shown
            if whole.startswith(given):
                self._held += whole[len(given) :]
            self._find_stop()
        text, self._held = self._held, ""
        return text

    def _find_stop(self) -> None:
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = self._held[: min(found)]
            self.stopped = True

    def _release(self) -> str:
        keep = 0 if self.stopped else self._undecided()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _undecided(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
