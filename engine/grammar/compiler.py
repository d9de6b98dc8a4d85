"""Grammars of requests made ready, away from the step loop: a large schema can take a second."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from engine.api import Grammar, Request
from engine.grammar.errors import GrammarError
from engine.grammar.state import GrammarState, Standing
from engine.grammar.vocabulary import GrammarVocabulary

MAX_BYTES: Final = 128 << 10
"""Of a grammar's text."""

_CACHED: Final = 64
_LONGEST_REASON: Final = 400  # characters: some reasons quote the whole grammar
# llguidance follows chains of definitions by recursion, and a chain as long as a text of MAX_BYTES allows overflows
# the usual stack, which would end the process. This is address space; memory is taken as it is used.
_STACK: Final = 512 << 20
_LIMITS: Final = LLParserLimits(
    max_lexer_states=50_000,  # of 1 to 2 kB each, for each running text
    verbose_errors=False,  # a dump of the parser's state helps no user
)
# A line of JSON as json.dumps writes it. With free white space a model may write nothing else until its tokens are
# used up, and no token would be forced. A schema may ask for other layouts by "x-guidance".
_LAYOUT: Final[Any] = {  # JsonCompileOptions, a name that only llguidance's stubs have
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


_NAMES: Final = {
    "json_schema": "JSON schema",
    "json_object": "grammar of a JSON object",
    "regex": "regular expression",
    "choice": "list of choices",
    "lark": "Lark grammar",
}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar, ready for any number of texts."""

    start: LLMatcher
    vocabulary: GrammarVocabulary

    def state(self, *, ignore_eos: bool) -> GrammarState:
        """For a new text."""
        return GrammarState(self.start, self.vocabulary, ignore_eos=ignore_eos)


def compile_grammar(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    """Check it and find what may come first. Raises GrammarError with what is wrong."""
    start = LLMatcher(vocabulary.tokens, _source(grammar), log_level=0, limits=_LIMITS)
    if start.is_error():
        raise GrammarError(f"the {_NAMES[grammar.kind]} cannot be followed: {_sentence(start.get_error())}")
    compiled = CompiledGrammar(start, vocabulary)
    standing = compiled.state(ignore_eos=False).spot().standing
    if standing is not Standing.OPEN:
        only = "nothing but the empty text" if standing is Standing.ENDED else "no text at all"
        raise GrammarError(f"the {_NAMES[grammar.kind]} allows {only}")
    return compiled


class GrammarCompiler:
    """Requests whose grammars are being compiled, and the grammars used lately. One thread compiles, in order."""

    def __init__(self, make_vocabulary: Callable[[], GrammarVocabulary]) -> None:
        """make_vocabulary: called once, in the thread and now: it keeps the interpreter from other work."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        before = threading.stack_size(_STACK)
        self._vocabulary = self._thread.submit(make_vocabulary)  # starts the thread
        threading.stack_size(before)
        self._cache: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._waiting: dict[str, tuple[Request, Future[CompiledGrammar]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, grammar: Grammar) -> None:
        """Compile a request's grammar, or find it."""
        self._waiting[request.id] = (request, self._compiled(grammar))

    def cancel(self, request: str) -> Request | None:
        """Take a request out of the line; None if it is not in it."""
        found = self._waiting.pop(request, None)
        return found and found[0]

    def finished(self, seconds: float) -> Iterator[tuple[Request, CompiledGrammar | GrammarError]]:
        """The requests that are ready, in the order they came, once there is one or `seconds` have passed."""
        wait((future for _, future in self._waiting.values()), seconds, FIRST_COMPLETED)
        for request, future in list(self._waiting.values()):
            if future.done():
                del self._waiting[request.id]
                yield request, _outcome(future)

    def _compiled(self, grammar: Grammar) -> Future[CompiledGrammar]:
        found = self._cache.get(grammar)
        if found is None:
            # the thread has made the vocabulary before it comes to this
            found = self._thread.submit(lambda: compile_grammar(grammar, self._vocabulary.result()))
            self._cache[grammar] = found
        self._cache.move_to_end(grammar)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return found


def _outcome(future: Future[CompiledGrammar]) -> CompiledGrammar | GrammarError:
    try:
        return future.result()
    except GrammarError as fault:
        return fault


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's terms. Raises GrammarError."""
    match grammar.kind:
        case "json_schema":
            return _json(grammar.text)
        case "json_object":
            return _json('{"type": "object"}')
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            return LLMatcher.grammar_from_lark(
                "start: " + " | ".join(map(json.dumps, _choices(grammar.text)))
            )
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


def _json(schema: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=_LAYOUT)
    except ValueError as fault:
        raise GrammarError(f"the JSON schema is not JSON: {fault}") from None


def _choices(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise GrammarError(f"the choices are not a JSON list: {fault}") from None
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise GrammarError("the choices must be a list of at least one string")
    return found


def _sentence(error: str) -> str:
    """What is wrong, from a message that also draws where: its first line, and a regular expression's own error."""
    lines = [line.strip() for line in error.strip().splitlines()] or ["no reason is known"]
    causes = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    text = " ".join([lines[0], *causes])
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
