"""The engine: one step reads like the paper."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch
from tokenizers import Tokenizer

from engine.admission import Limits, refusal
from engine.api import (
    DraftSettings,
    KVUsage,
    Launch,
    Output,
    PhaseSeconds,
    Request,
    Round,
    StepReport,
    Verification,
)
from engine.available import available_bytes, mib, weights_shortage
from engine.batch import RaggedBatch, Span
from engine.budget import CannotServeError, budget, kv_blocks, require
from engine.commit import Ending, moves, settle
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.constrained import settled_draft
from engine.draft.features import Features
from engine.draft.registry import Parts, Proposers, load_parts
from engine.draft.roster import Order, Roster
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.errors import GrammarError
from engine.grammar.vocabulary import GrammarVocabulary
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.prefix import root
from engine.measure import in_words, measure
from engine.model.device import unavailable_reason
from engine.model.graphs import Capture, CudaCapture, sizes_up_to
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.prompt_logprobs import judge_prompts
from engine.rounds import count_round, granted, observation, output, seen_of, unstarted, view
from engine.scheduler import Schedule, Scheduler
from engine.sequence import Sequence
from engine.stopwatch import Stopwatch, now
from engine.text import TextStream
from engine.verify.claim import Claim, Verdict
from engine.verify.step import verify
from policies.base import Decision, Drafting, LoadView, StepSeen
from policies.controller import Controller
from policies.cost import StepCosts
from policies.settings import PolicySettings

_COMPILE_WAIT: Final = 0.02  # seconds; the loop must go on reading messages
_WORTH_MEASURING: Final = (
    16 << 20
)  # bytes of weights: the steps of smaller models cost nothing but what is around them


class Work(NamedTuple):
    """A sequence whose rows give logits in this step, and its draft. Prompts that end here have no draft."""

    sequence: Sequence
    draft: Draft


class Engine:
    """Tokens in, tokens out. Not thread-safe: one loop calls it."""

    def __init__(
        self,
        launch: Launch,
        loaded: LoadedModel,
        tokenizer: Tokenizer | None = None,
        parts: Parts | None = None,
    ) -> None:
        """parts: what the drafts need beside the target; None loads it."""
        parts = load_parts(launch.draft, loaded, _silent) if parts is None else parts
        self._launch = launch
        self._loaded = loaded
        self._tokenizer = tokenizer
        context = loaded.context(launch.max_context)
        blocks = kv_blocks(launch, loaded, parts)
        self.memory = budget(launch, loaded, parts).as_dict()
        # What an encoder makes of a prompt depends on all of it: no part of it is another prompt's prefix.
        self.pool = BlockPool(blocks, launch.block_size, caching=launch.prefix_cache and not loaded.start)
        # One process loads its model once, so a path cannot come to mean something else while blocks are kept.
        self._root = root(f"{launch.model_path} {loaded.dtype} {launch.quantization}")
        widths = {name: reads.width for name, reads in parts.reads.items()}
        self._memory = KVMemory(
            loaded.shapes, blocks, launch.block_size, loaded.dtype, loaded.device, features=widths
        )
        self._features = Features(self._memory, parts.reads)
        self.scheduler = Scheduler.of(launch, self.pool)
        self._runner = Runner(self._memory, loaded.kernels)
        self._draft_settings = launch.draft
        self._verification = launch.verification
        self._proposers = Proposers(parts, loaded, self._memory, self._runner)
        self._roster = self._proposers.roster(launch.draft)
        self.policy = Controller(launch.policy, StepCosts(drafts=self._roster.costs(1.0)))
        self._outdated = False  # whether the costs of drafts were measured of other ones
        positions = blocks * launch.block_size - len(loaded.start)
        self.max_context = min(context, positions)  # what one request can be at most
        self._limits = Limits(
            max_context=context,
            kv_positions=positions,
            max_running=launch.max_running,
            vocabulary=loaded.vocabulary,
            finds_stop_strings=tokenizer is not None,
            judges_prompts=not loaded.start,
        )
        self._grammars = GrammarCompiler(
            lambda: GrammarVocabulary(tokenizer, loaded.vocabulary, loaded.end_tokens)
        )
        self._outbox: list[Output] = []
        self.steps = 0

    @classmethod
    def start(cls, launch: Launch, say: Callable[[str], None]) -> "Engine":
        """Load the model and make an engine. Raises UnsupportedModelError, CannotServeError or OSError."""
        reason = unavailable_reason(launch.device)
        if reason:
            raise CannotServeError(reason)
        path = Path(launch.model_path)
        cache = Path(launch.cache_dir) if launch.cache_dir else None
        device, dtype = torch.device(launch.device), getattr(torch, launch.dtype)
        require(weights_shortage(path, available_bytes(device)))
        loaded = load(path, dtype, device, say, cache=cache, quantization=launch.quantization)
        parts = load_parts(launch.draft, loaded, say)
        needs, available = budget(launch, loaded, parts), available_bytes(device)
        say(f"memory: {needs.text()}; {mib(available)} are available beside the weights")
        require(needs.shortage(available))
        file = path / "tokenizer.json"
        engine = cls(launch, loaded, Tokenizer.from_file(str(file)) if file.exists() else None, parts)
        if launch.device == "cuda" and launch.cuda_graphs:
            engine.capture(CudaCapture(), say)
        if engine._worth_measuring:
            engine.measure(say)
        return engine

    def capture(self, capture: Capture, say: Callable[[str], None]) -> None:
        """Capture small steps; where that fails, all steps run as they are."""
        if not self._runner.can_capture:
            say("no CUDA graphs: without Triton kernels the attention of a step cannot be captured")
            return
        rows = self._launch.max_running * (self._launch.policy.k_max + 1)
        sizes = sizes_up_to(rows)
        most_blocks = self._launch.max_running * self.pool.blocks_for(self.max_context)
        try:
            self._runner.capture(self._loaded.forward, capture, sizes=sizes, most_blocks=most_blocks)
        except RuntimeError as fault:
            say(f"no CUDA graphs: {fault}")
        else:
            say(f"captured steps of up to {sizes[-1]} rows in {len(sizes)} sizes")

    def measure(self, say: Callable[[str], None]) -> None:
        """Time steps and drafts, while there is nothing to do; the policy reckons with what they cost from then on."""
        watch = Stopwatch.start()
        costs = measure(self, self._roster.proposers)
        if costs is not None:
            self.policy.reckon(costs)
            say(f"measured in {watch.lap():.1f} s, {in_words(costs)}")

    @property
    def _worth_measuring(self) -> bool:
        return self._loaded.weight_bytes >= _WORTH_MEASURING

    def rest(self, say: Callable[[str], None]) -> None:
        """There is nothing to do: time for what would disturb a step. A leaked block would else only show as slow
        admission.
        """
        self.check_integrity()
        if self._outdated:
            self._outdated = False
            self.measure(say)

    @contextmanager
    def lent(self, policy: Controller, roster: Roster) -> Iterator[None]:
        """With others in the place of policy and proposers."""
        kept = self.policy, self._roster, self.steps
        self.policy, self._roster = policy, roster
        try:
            yield
        finally:
            self.policy, self._roster, self.steps = kept

    @property
    def model_type(self) -> str:
        """transformers' name of the architecture."""
        return self._loaded.model_type

    @property
    def proposers(self) -> tuple[str, ...]:
        """Names of those who may draft."""
        return tuple(proposer.name for proposer in self._roster.proposers)

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompts, so that texts do not go on from them."""
        return bool(self._loaded.start)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._outbox or len(self._grammars))

    def submit(self, request: Request) -> None:
        """Queue a request. One that cannot run is answered with an error by the next step."""
        reason = refusal(request, self._limits)
        if reason:
            self._refuse(request, reason)
        elif request.sampling.grammar is not None:
            self._grammars.add(request, request.sampling.grammar)
        else:
            self._enter(request)

    def cancel(self, request: str) -> None:
        """End a request, all its texts; the next step says so. Unknown ids are ignored."""
        for sequence in self.scheduler.texts(request):
            self._outbox.append(self._end(sequence, Ending([], 0, 0, "cancelled")))
        if waiting := self._grammars.cancel(request):
            self._outbox += unstarted(waiting, "cancelled")

    def configure(
        self, policy: PolicySettings, draft: DraftSettings, verification: Verification = "block"
    ) -> None:
        """Take over hot settings. Raises DraftSettingsError, changing nothing."""
        if draft != self._draft_settings:
            self._roster = self._proposers.roster(draft)
            self._draft_settings = draft
            costs = self.policy.costs
            self.policy.reckon(replace(costs, drafts=self._roster.costs(costs.plain)))
            self._outdated = self._worth_measuring
        self._verification = verification
        self.policy.configure(policy)

    def step(self) -> StepReport:
        """schedule -> choose k -> draft -> verify -> commit -> observe."""
        self._take_compiled()
        watch = Stopwatch.start()
        schedule = self._schedule()
        decisions = self._choose(schedule.decodes)
        scheduled = watch.lap()
        drafts, drafting = self._draft(schedule.decodes, decisions)
        drafted = watch.lap()
        batch, work = self._pack(schedule, drafts)
        verdicts = self._verify(schedule, batch, work)
        verified = watch.lap()
        endings = self._commit(schedule, work, verdicts)
        rounds = [
            count_round(*each) for each in zip(schedule.decodes, decisions, drafts, endings, strict=False)
        ]
        seen = seen_of(schedule, batch, rounds, drafting, now=now(), seconds=watch.total)
        self._observe(rounds, decisions, seen)
        outputs = self._answer(work, endings)
        self.steps += 1
        phases = PhaseSeconds(schedule=scheduled, draft=drafted, verify=verified, commit=watch.lap())
        return StepReport(
            step=self.steps,
            phases=phases,
            rows=batch.real_rows,
            padded_rows=batch.padding,
            prefill_rows=sum(chunk.rows for chunk in schedule.chunks),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self._grammars),
            committed=sum(len(ending.tokens) for ending in endings[: len(schedule.decodes)]),
            kv=self.kv_usage(),
            load_state=self.policy.load_state,
            rounds=rounds,
            outputs=outputs,
            preempted=schedule.preempted,
        )

    def kv_usage(self) -> KVUsage:
        """Blocks by state."""
        return KVUsage(free=self.pool.free, used=self.pool.used, cached=self.pool.cached)

    def check_integrity(self) -> None:
        """Assert that no block is lost or held twice."""
        self.scheduler.check_integrity()

    def _enter(self, request: Request, grammar: CompiledGrammar | None = None) -> None:
        """All its texts, into the waiting line."""
        first = None
        for index in range(request.n):
            sequence = Sequence(
                request,
                self.pool,
                self._stream(request),
                self._loaded.end_tokens,
                root=self._root,
                first=first,
                index=index,
                grammar=None if grammar is None else grammar.state(ignore_eos=request.sampling.ignore_eos),
                start=self._loaded.start,
            )
            first = first or sequence
            self.scheduler.add(sequence)

    def _refuse(self, request: Request, reason: str) -> None:
        self._outbox.append(Output(id=request.id, tokens=[], finish="error", error=reason, refused=True))

    def _take_compiled(self) -> None:
        """Let in the requests whose grammars are ready. With nothing else to do, wait a little for the first."""
        busy = self.scheduler.running or self.scheduler.waiting or self._outbox
        for request, outcome in self._grammars.finished(0.0 if busy else _COMPILE_WAIT):
            if isinstance(outcome, GrammarError):
                self._refuse(request, str(outcome))
            else:
                self._enter(request, outcome)

    def _stream(self, request: Request) -> TextStream | None:
        if not request.sampling.stop or self._tokenizer is None:
            return None
        return TextStream.of(self._tokenizer, request)

    def _schedule(self) -> Schedule:
        schedule = self.scheduler.schedule()
        for copy in schedule.copies:
            self._memory.copy(copy.source, copy.target)
        return schedule

    def _choose(self, decodes: list[Sequence]) -> list[Decision]:
        """One decision per decoding sequence; room for its draft is reserved before anyone writes there."""
        load = LoadView(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_free=self.pool.available / self.pool.total,
            now=now(),
            context=sum(sequence.table.committed for sequence in decodes),
        )
        views = [view(sequence, self._roster.options) for sequence in decodes]
        decisions = self.policy.decide(load, views)
        return [
            granted(decision, self.scheduler.grant(sequence, decision.tokens))
            for sequence, decision in zip(decodes, decisions, strict=True)
        ]

    def _draft(
        self, decodes: list[Sequence], decisions: list[Decision]
    ) -> tuple[list[Draft], tuple[Drafting, ...]]:
        """One draft per decoding sequence, and what they took."""
        pairs = list(zip(decodes, decisions, strict=True))
        orders = [
            Order(decision.option, Ask(sequence, decision.tokens, decision.k))
            for sequence, decision in pairs
            if decision.option is not None
        ]
        drafted = self._roster.drafts(orders)
        proposed = iter(drafted.drafts)
        return [settled_draft(sequence, decision, proposed) for sequence, decision in pairs], drafted.drafting

    def _pack(self, schedule: Schedule, drafts: list[Draft]) -> tuple[RaggedBatch, list[Work]]:
        """All rows of the step: decodes first, in order, then prompt chunks."""
        spans, work = [], []
        for sequence, draft in zip(schedule.decodes, drafts, strict=True):
            spans.append(_rows(sequence, 1, draft, logits=len(draft.tokens) + 1))
            work.append(Work(sequence, draft))
        for sequence, rows in schedule.chunks:
            ends = rows == sequence.uncomputed
            spans.append(_rows(sequence, rows, NO_DRAFT, logits=rows if sequence.unjudged else int(ends)))
            if ends:
                work.append(Work(sequence, NO_DRAFT))
        return self._runner.pack(spans), work

    def _verify(self, schedule: Schedule, batch: RaggedBatch, work: list[Work]) -> list[Verdict]:
        if batch.rows == 0:
            return []
        taps = self._features.taps()
        logits = self._runner.run(self._loaded.forward, batch, taps)
        self._features.keep(batch, taps)
        logits = judge_prompts(schedule, batch, logits)
        return verify(logits, [Claim.of(sequence, draft) for sequence, draft in work], self._verification)

    def _commit(self, schedule: Schedule, work: list[Work], verdicts: list[Verdict]) -> list[Ending]:
        """Take the verdicts into the sequences; roll back what was rejected."""
        for sequence, rows in schedule.chunks:
            sequence.commit(sequence.table.committed + rows)
        endings = []
        pairs = zip(work, verdicts, strict=True)
        self._memory.move([move for (sequence, _), verdict in pairs for move in moves(sequence, verdict)])
        for (sequence, draft), verdict in zip(work, verdicts, strict=True):
            ending = settle(sequence, draft, verdict)
            sequence.extend(ending.tokens)
            if ending.tokens:
                sequence.commit(len(sequence.tokens) - 1)
            if sequence.grammar is not None and ending.finish is None:
                sequence.grammar.commit(ending.tokens)
            endings.append(ending)
        return endings

    def _observe(self, rounds: list[Round], decisions: list[Decision], step: StepSeen) -> None:
        """Let the policy learn from the rounds."""
        shown = zip(rounds, decisions, strict=True)
        self.policy.observe([observation(r, decision) for r, decision in shown if r.drafted], step)

    def _answer(self, work: list[Work], endings: list[Ending]) -> list[Output]:
        """What the requests are told, those refused or cancelled since the last step included."""
        outputs, self._outbox = self._outbox, []
        for (sequence, _), ending in zip(work, endings, strict=True):
            outputs.append(output(sequence, ending) if ending.finish is None else self._end(sequence, ending))
        return outputs

    def _end(self, sequence: Sequence, ending: Ending) -> Output:
        if ending.distrusts:
            self._memory.clear(self.pool.distrust(sequence.table.blocks))
        self.scheduler.remove(sequence)
        self.policy.forget(sequence.id)
        self._roster.forget(sequence.id)
        return output(sequence, ending, sequence.report())


def _silent(_: str) -> None:
    """Says nothing."""


def _rows(sequence: Sequence, rows: int, draft: Draft, *, logits: int) -> Span:
    """The next `rows` uncomputed tokens of a sequence, and its draft after them."""
    start = sequence.table.committed
    tokens = sequence.tokens[start : start + rows] + draft.tokens
    return Span(sequence.table, start, tokens, logits, draft.parents)
