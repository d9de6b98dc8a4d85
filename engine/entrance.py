"""The way of a request into the engine: refused, in line for its grammar, or as texts in line to run."""

from collections.abc import Callable
from typing import Final

from tokenizers import Tokenizer

from engine.admission import Limits, refusal
from engine.api import Launch, Output, Request
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.errors import GrammarError
from engine.grammar.vocabulary import GrammarVocabulary
from engine.kv.pool import BlockPool
from engine.kv.prefix import root
from engine.model.loader import LoadedModel
from engine.rounds import unstarted
from engine.sequence import Sequence
from engine.text import TextStream

_COMPILE_WAIT: Final = 0.02  # seconds; the loop must go on reading messages


class Entrance:
    """Hands on the texts of each request that can run. What others are to be told at once is returned."""

    def __init__(
        self,
        launch: Launch,
        loaded: LoadedModel,
        tokenizer: Tokenizer | None,
        pool: BlockPool,
        *,
        limits: Limits,
        enter: Callable[[Sequence], None],
    ) -> None:
        """enter: called with each text that is to run, those of a request in order."""
        self._loaded, self._tokenizer, self._pool = loaded, tokenizer, pool
        self._limits = limits
        self._enter = enter
        # One process loads its model once, so a path cannot come to mean something else while blocks are kept.
        self._root = root(f"{launch.model_path} {loaded.dtype} {launch.quantization}")
        self._grammars = GrammarCompiler(
            lambda: GrammarVocabulary(tokenizer, loaded.vocabulary, loaded.end_tokens)
        )

    def __len__(self) -> int:
        """Requests that wait for their grammars."""
        return len(self._grammars)

    def submit(self, request: Request) -> list[Output]:
        """Take a request, or say why it cannot run."""
        reason = refusal(request, self._limits)
        if reason:
            return [_refused(request, reason)]
        if request.sampling.grammar is not None:
            self._grammars.add(request, request.sampling.grammar)
        else:
            self._admit(request)
        return []

    def cancel(self, request: str) -> list[Output]:
        """End a request that waits for its grammar; others are ignored."""
        waiting = self._grammars.cancel(request)
        return unstarted(waiting, "cancelled") if waiting else []

    def compiled(self, *, busy: bool) -> list[Output]:
        """Let in the requests whose grammars are ready. With nothing else to do, wait a little for the first."""
        refused = []
        for request, outcome in self._grammars.finished(0.0 if busy else _COMPILE_WAIT):
            if isinstance(outcome, GrammarError):
                refused.append(_refused(request, str(outcome)))
            else:
                self._admit(request, outcome)
        return refused

    def _admit(self, request: Request, grammar: CompiledGrammar | None = None) -> None:
        first = None
        for index in range(request.n):
            sequence = Sequence(
                request,
                self._pool,
                self._stream(request),
                self._loaded.end_tokens,
                root=self._root,
                first=first,
                index=index,
                grammar=None if grammar is None else grammar.state(ignore_eos=request.sampling.ignore_eos),
                start=self._loaded.start,
            )
            first = first or sequence
            self._enter(sequence)

    def _stream(self, request: Request) -> TextStream | None:
        if not request.sampling.stop or self._tokenizer is None:
            return None
        return TextStream.of(self._tokenizer, request)


def _refused(request: Request, reason: str) -> Output:
    return Output(id=request.id, tokens=[], finish="error", error=reason, refused=True)
