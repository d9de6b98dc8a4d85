"""Outputs come from vLLM's engine, reports from its scheduler, each in their own time: here they become one again."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from engine.api import DraftKind, KVUsage, Output, Round, StepReport
from engine.reports import NO_TIME, of_no_step
from engine.vllm.texts import Text
from policies.base import GRAMMAR


class Account:
    """What is to be told, in order. Whoever owns one calls `settle` when something has come, and when it is time.

    A report goes out with the outputs of its step where they are there by then; outputs wait for the report of theirs,
    since the last one of a text says what speculation did for it.
    """

    def __init__(self, blocks: int, kinds: Sequence[DraftKind], send: Callable[[StepReport], None]) -> None:
        """blocks: of vLLM's KV pool. kinds: who drafts, by our names, at most one; vLLM's methods have their own."""
        self._send = send
        self._drafter = kinds[0]
        self._texts: dict[str, Text] = {}
        self._outputs: list[tuple[Text, Output]] = []
        self._reports: list[StepReport] = []
        self._last = of_no_step(KVUsage(free=blocks, used=0))

    def open(self, text: Text) -> None:
        """There is this text, until its end has been told."""
        self._texts[text.id] = text

    def texts_of(self, request: str) -> Iterator[Text]:
        """Those of a request that have not ended."""
        return (text for text in self._texts.values() if text.request.id == request and not text.ended)

    @property
    def is_empty(self) -> bool:
        """Whether there is no text, and nothing to be told."""
        return not (self._texts or self._outputs or self._reports)

    @property
    def steps(self) -> int:
        """Of the last report."""
        return self._last.step

    @property
    def at_rest(self) -> KVUsage:
        """The pool when nothing runs: what is not free then is kept for prefixes."""
        kv = self._last.kv
        return KVUsage(free=kv.free + kv.used, used=0, cached=kv.cached)

    def add(self, text: Text, output: Output) -> None:
        """vLLM has said this."""
        self._outputs.append((text, output))

    def hear(self, report: StepReport) -> None:
        """Its scheduler has said this. The ends of texts that it tells of as well are known here."""
        rounds = [self._named(one) for one in report.rounds]
        for one in rounds:
            if (text := self._texts.get(one.request)) is not None:
                text.count(one)
        self._reports.append(structs.replace(report, rounds=rounds, outputs=[]))

    @property
    def awaits_reports(self) -> bool:
        """Whether there are outputs whose report has not come."""
        return any(text.is_ahead for text, _ in self._outputs)

    @property
    def awaits_outputs(self) -> bool:
        """Whether there is nothing but reports."""
        return not self._outputs

    def settle(self) -> None:
        """Tell all that is known; outputs go with the last report, or with one of no step."""
        if not (self._outputs or self._reports):
            return
        outputs = [text.told(output) for text, output in self._outputs]
        for text, output in self._outputs:
            text.be_level()
            if output.finish is not None:
                self._texts.pop(text.id, None)
        *before, last = self._reports or [self._of_now()]
        self._outputs, self._reports = [], []
        for report in before:
            self._send(report)
        self._send(structs.replace(last, outputs=outputs))
        self._last = structs.replace(last, rounds=[], outputs=[])

    def _named(self, one: Round) -> Round:
        ours = one.proposer in {"none", GRAMMAR, self._drafter}
        return one if ours else structs.replace(one, proposer=self._drafter)

    def _of_now(self) -> StepReport:
        return structs.replace(
            self._last, phases=NO_TIME, rows=0, prefill_rows=0, padded_rows=0, committed=0, preempted=0
        )
