"""A request while the engine works on it."""

from collections.abc import Collection
from collections.abc import Sequence as Tokens

from msgspec import structs

from engine.api import Request, RequestReport, SamplingParams, TokenLogprob
from engine.grammar.state import GrammarState
from engine.kv.pool import BlockPool
from engine.kv.prefix import Chain, extended
from engine.kv.table import BlockTable
from engine.sampling.edits import Edits
from engine.sampling.rng import text_seed
from engine.tally import Tally
from engine.text import TextStream


class Sequence:
    """Tokens and KV of one of a request's texts.

    The last token is *pending*: it is committed text, but its keys and values are computed by the next forward. So a
    sequence that decodes has `table.committed == len(tokens) - 1`; one in prefill has less, and so has one that was
    preempted: it computes prompt and text anew.
    """

    def __init__(
        self,
        request: Request,
        pool: BlockPool,
        stream: TextStream | None,
        end_tokens: Collection[int] = frozenset(),
        *,
        root: bytes = b"",
        first: "Sequence | None" = None,
        index: int = 0,
        grammar: GrammarState | None = None,
        start: Tokens[int] = (),
    ) -> None:
        """end_tokens: by which the model ends a text. root: where the chain of block digests begins. first, index: text
        0 of the same request, and which text this is. grammar: of this text alone. start: what a decoder begins with
        whose encoder reads the prompt; empty where the text goes on from the prompt.
        """
        self.request = request
        self.index = index
        self.first = first
        self.id = text_id(request.id, index)
        self.sampling = _sampling(request.sampling, index)
        self.tokens = [*request.prompt, *start]
        self._given = len(self.tokens)
        self.table = BlockTable(pool, source=len(request.prompt) if start else 0)
        # what an encoder makes of a part of the prompt depends on the whole
        self.chain = Chain(extended(root, request.prompt) if start else root, pool.block_size)
        self.stream = stream  # only with stop strings: they are found in text, not in tokens
        self.cached_tokens: int | None = None  # of the prompt, once admitted
        self.tally = Tally()
        self.edits = Edits(self.sampling, request.prompt, end_tokens)
        self.grammar = grammar
        self.ends = self._own_ends(end_tokens).union(request.sampling.stop_tokens)
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        if request.sampling.prompt_logprobs is not None and index == 0:
            self.prompt_logprobs = [None]

    def _own_ends(self, end_tokens: Collection[int]) -> frozenset[int]:
        """What ends the text by itself. A grammar sees to it that these come only where it allows an end."""
        if self.grammar is not None:
            return self.grammar.end_tokens
        return frozenset() if self.sampling.ignore_eos else frozenset(end_tokens)

    @property
    def text(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self._given :]

    @property
    def generated(self) -> int:
        """Their number."""
        return len(self.tokens) - self._given

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_tokens - self.generated

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are missing, the pending one included: 1 when decoding."""
        return len(self.tokens) - self.table.committed

    @property
    def not_speculated(self) -> str | None:
        """Why the request itself rules drafts out, if it does."""
        if self.sampling.prompt_logprobs is not None:
            return "prompt_logprobs was asked for: such requests are decoded without drafts"
        if not self.request.speculate or self.request.k == 0:
            return "the request asked not to be speculated for"
        return None

    @property
    def unjudged(self) -> int:
        """Tokens at the prompt's end whose logprobs were asked for and not found yet."""
        return 0 if self.prompt_logprobs is None else len(self.request.prompt) - len(self.prompt_logprobs)

    def extend(self, tokens: Tokens[int]) -> None:
        """Append committed text."""
        self.tokens += tokens
        self.edits.extend(tokens)

    @property
    def takes_hits(self) -> bool:
        """Whether it may begin with cached blocks: not while the rows of its prompt are asked for, nor with a part of
        what an encoder makes of the whole.
        """
        return not (self.unjudged or self.table.source)

    @property
    def indivisible(self) -> bool:
        """Whether its next rows are to be computed all at once: an encoder sees its whole prompt."""
        return self.table.committed < self.table.source

    def begin(self, blocks: list[int], positions: int) -> None:
        """It is admitted, and so many of its positions are in these blocks already."""
        self.table.adopt(blocks, positions)
        if self.cached_tokens is None:
            self.cached_tokens = positions

    def commit(self, positions: int) -> None:
        """Positions below this are final; blocks that have become full can be found by others from now on."""
        self.table.commit(positions)
        if self.table.unpublished:
            self.table.publish(self.chain.leading(self.tokens, positions // self.table.block_size))

    def report(self) -> RequestReport:
        """What speculation did for this text so far."""
        counted = self.tally.report(len(self.request.prompt), self.generated)
        return structs.replace(
            counted, cached_tokens=self.cached_tokens or 0, not_speculated=self.not_speculated
        )


def text_id(request: str, index: int) -> str:
    """What the engine calls a text: the request's id for the first, and one derived from it for the others."""
    return f"{request}#{index}" if index else request


def _sampling(sampling: SamplingParams, index: int) -> SamplingParams:
    return structs.replace(sampling, seed=text_seed(sampling.seed, index)) if index else sampling
