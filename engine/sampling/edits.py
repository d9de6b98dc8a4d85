"""What one request's parameters change about the rows that follow its text, in the form that a step wants it."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.api import SamplingParams

Tokens = NDArray[np.int64]


class Edits:
    """Prepared once per text, and told each committed token once, so that no step reads the whole text again."""

    def __init__(
        self,
        sampling: SamplingParams,
        prompt: Sequence[int] = (),
        end_tokens: Collection[int] = (),
        text: Sequence[int] = (),
    ) -> None:
        """end_tokens: by which the model ends a text. All tokens must be in the vocabulary."""
        self.sampling = sampling
        self.bias = _tokens(sampling.logit_bias)
        self.bias_values = np.array(list(sampling.logit_bias.values()), dtype=np.float32)
        self.allowed = None if sampling.allowed_tokens is None else _tokens(sampling.allowed_tokens)
        self.banned = _tokens(sampling.banned_tokens)
        self.ends = _tokens({*end_tokens, *sampling.stop_tokens})
        self.counts = Counts(prompt, sampling.max_tokens) if _penalises(sampling) else None
        self.generated = 0
        self._always = bool(
            len(self.bias) or len(self.banned) or self.allowed is not None or self.counts is not None
        )
        self.extend(text)

    @property
    def idle(self) -> bool:
        """Whether rows that follow the text stay as they are."""
        return not self._always and self.generated >= self.sampling.min_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """These were committed."""
        self.generated += len(tokens)
        if self.counts is not None:
            self.counts.add(tokens)


class Counts:
    """The distinct tokens of a prompt and its text, and how often the text has each."""

    def __init__(self, prompt: Sequence[int], room: int) -> None:
        """room: tokens that the text can have at most."""
        distinct = dict.fromkeys(prompt)
        self._places = {token: place for place, token in enumerate(distinct)}
        self._tokens = np.concatenate([_tokens(distinct), np.zeros(room, dtype=np.int64)])
        self._times = np.zeros(len(self._tokens), dtype=np.float32)

    def add(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            self._tokens[place] = token
            self._times[place] += 1

    def after(self, drafted: Sequence[int]) -> tuple[Tokens, NDArray[np.float32]]:
        """([U] distinct tokens, [U] times in the text) if `drafted` were appended. Valid until the next `add`."""
        tokens, times = self._tokens[: len(self._places)], self._times[: len(self._places)]
        if not drafted:
            return tokens, times
        times, new = times.copy(), Counter[int]()
        for token in drafted:
            place = self._places.get(token)
            if place is None:
                new[token] += 1
            else:
                times[place] += 1
        more = np.fromiter(new.values(), np.float32, len(new))
        return np.concatenate([tokens, _tokens(new)]), np.concatenate([times, more])


def _penalises(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    )


def _tokens(found: Iterable[int]) -> Tokens:
    return np.array(list(found), dtype=np.int64)
