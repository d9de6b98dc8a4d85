"""A text that vLLM writes, as the daemon is told of it. Without vLLM."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import structs

from engine.api import FinishReason, Output, Request, Round, TokenLogprob
from engine.sequence import text_id
from engine.tally import Tally
from engine.text import TextStream

_FINISHES: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "repetition": "stop",
    "length": "length",
    "abort": "cancelled",
    "error": "error",
}
"""By vLLM's words."""

_FAILED: Final = "vLLM gave this request up; send it again"
_CONTRADICTORY: Final = (
    "the structure asked for needs a token that allowed_token_ids, banned_token_ids or logit_bias keep away, "
    "and vLLM gave the request up: drop one of them"
)


class Likely(Protocol):
    """vLLM's `Logprob`."""

    logprob: float
    rank: int | None


class Text:
    """One text of a request, until it has ended. Tokens come from vLLM, rounds from its scheduler."""

    def __init__(self, request: Request, index: int, stream: TextStream | None) -> None:
        """stream: with stop strings, which are found in text and not in tokens."""
        self.id = text_id(request.id, index)
        self.request = request
        self.index = index
        self.ended = False
        self._stream = stream
        self._rounds: list[Round] = []
        self._by_rounds = 0  # tokens
        self._generated = 0
        self._cached = 0

    @property
    def is_ahead(self) -> bool:
        """Whether tokens have come whose round is not known yet. The first one comes of the prompt, not of a round."""
        return self._generated - 1 > self._by_rounds

    def be_level(self) -> None:
        """The rounds of what has come will not be known: nobody waits for them any more."""
        self._by_rounds = max(self._by_rounds, self._generated - 1)

    def count(self, one: Round) -> None:
        """A round of this text."""
        self._rounds.append(one)
        self._by_rounds += one.accepted + 1

    def take(
        self,
        tokens: Sequence[int],
        finish: str | None,
        *,
        cached: int,
        logprobs: list[TokenLogprob] | None = None,
        prompt_logprobs: list[TokenLogprob | None] | None = None,
    ) -> Output:
        """What vLLM has added, in its words. cached: tokens of the prompt that were not computed for it.

        The output of an end has no report yet: rounds may still be to come; see `told`.
        """
        self._cached = cached
        kept, ending = self._cut(tokens, finish)
        self._generated += kept
        self.ended = ending is not None
        return Output(
            id=self.request.id,
            index=self.index,
            tokens=list(tokens[:kept]),
            logprobs=None if logprobs is None else logprobs[:kept],
            prompt_logprobs=prompt_logprobs,
            finish=ending,
            error=None if ending != "error" else _CONTRADICTORY if self._contradicts else _FAILED,
            refused=ending == "error" and self._contradicts,
        )

    def give_up(self, finish: FinishReason, error: str | None = None, *, refused: bool = False) -> Output:
        """It ends here, whatever vLLM thinks."""
        self.ended = True
        return Output(
            id=self.request.id, index=self.index, tokens=[], finish=finish, error=error, refused=refused
        )

    def told(self, output: Output) -> Output:
        """The output as the daemon is to get it: the last one with the report."""
        if output.finish is None:
            return output
        counted = self._tally().report(len(self.request.prompt), self._generated)
        report = structs.replace(counted, cached_tokens=self._cached, not_speculated=self._not_speculated)
        return structs.replace(output, report=report)

    def _tally(self) -> Tally:
        """Of the rounds, as far as the text has gone: what lies behind its end is no evidence."""
        tally, left = Tally(), self._generated - 1
        for one in self._rounds:
            if left <= 0:
                break
            tally.add(one.k, one.proposer, one.drafted, min(left, one.examined), min(left, one.accepted))
            left -= one.accepted + 1
        return tally

    @property
    def _contradicts(self) -> bool:
        """Whether grammar and tokens may leave nothing to draw: vLLM draws then what its grammar refuses."""
        sampling = self.request.sampling
        edited = sampling.allowed_tokens is not None or sampling.banned_tokens or sampling.logit_bias
        return sampling.grammar is not None and bool(edited)

    @property
    def _not_speculated(self) -> str | None:
        if self.request.sampling.prompt_logprobs is not None:
            return "prompt_logprobs was asked for: such requests are decoded without drafts"
        if not self.request.speculate or self.request.k == 0:
            return "the request asked not to be speculated for"
        return None

    def _cut(self, tokens: Sequence[int], finish: str | None) -> tuple[int, FinishReason | None]:
        """(how many tokens stay, why the text ends with them). A stop string ends it before vLLM knows."""
        ending = None if finish is None else _FINISHES.get(finish, "error")
        if self._stream is None:
            return len(tokens), ending
        for kept, token in enumerate(tokens, start=1):
            self._stream.push([token])
            if self._stream.stopped:
                return kept, "stop"
        return len(tokens), ending


def likelihoods(
    rows: Sequence[Mapping[int, Likely] | None] | None, tokens: Sequence[int], most: int | None
) -> list[Any] | None:
    """vLLM's logprobs of these tokens as ours, each with the `most` likeliest; a row that is None stays it."""
    if not rows or most is None:  # a prompt's are told once: later outputs have an empty list
        return None
    return [
        None if row is None else _likelihood(token, row, most)
        for token, row in zip(tokens, rows, strict=True)
    ]


def _likelihood(token: int, row: Mapping[int, Likely], most: int) -> TokenLogprob:
    own = row[token]
    falling = sorted(row.items(), key=lambda item: (-item[1].logprob, item[0]))
    top = [(other, found.logprob) for other, found in falling][:most]
    return TokenLogprob(token=token, logprob=own.logprob, rank=own.rank or 1, top=top)
