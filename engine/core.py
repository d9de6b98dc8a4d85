"""The engine: one step reads like the paper."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from engine.admission import Limits
from engine.api import (
    DraftSettings,
    KVUsage,
    Launch,
    Output,
    PhaseSeconds,
    Request,
    Room,
    Round,
    StepReport,
    Verification,
)
from engine.batch import RaggedBatch, Span
from engine.budget import budget, kv_blocks
from engine.commit import Ending, moves, settle
from engine.draft.base import NO_DRAFT, Ask, Draft, Proposer
from engine.draft.constrained import settled_draft
from engine.draft.features import Features
from engine.draft.registry import Parts, Proposers, load_parts
from engine.draft.roster import Order, Roster
from engine.entrance import Entrance
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.model.graphs import Capture, sizes_up_to
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.prompt_logprobs import judge_prompts
from engine.reports import of_no_step
from engine.rounds import count_round, granted, observation, output, seen_of, view
from engine.scheduler import Schedule, Scheduler
from engine.sequence import Sequence
from engine.stopwatch import Stopwatch, now
from engine.telling import Turns, told
from engine.verify.claim import Claim, Verdict
from engine.verify.step import verify
from policies.base import Decision, Drafting, LoadView, Policy, StepSeen
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.settings import PolicySettings

_TELLS_ERRORS: Final = 32  # steps between words on how well they are foreseen


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
        context = loaded.context(launch.max_context)
        blocks = kv_blocks(launch, loaded, parts)
        self.memory = budget(launch, loaded, parts).as_dict()
        self.room: Room | None = None  # see Ready
        # What an encoder makes of a prompt depends on all of it: no part of it is another prompt's prefix.
        self.pool = BlockPool(blocks, launch.block_size, caching=launch.prefix_cache and not loaded.start)
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
        self._policy: Policy = self.policy  # who decides: another one while it is `lent`
        self.unmeasured = self.proposers  # the policy has nothing but their own word on what they cost
        positions = blocks * launch.block_size - len(loaded.start)
        self.max_context = min(context, positions)  # what one request can be at most
        limits = Limits(
            max_context=context,
            kv_positions=positions,
            max_running=launch.max_running,
            vocabulary=loaded.vocabulary,
            finds_stop_strings=tokenizer is not None,
            judges_prompts=not loaded.start,
        )
        self._entrance = Entrance(
            launch, loaded, tokenizer, self.pool, limits=limits, enter=self.scheduler.add
        )
        self._outbox: list[Output] = []
        self.steps = 0
        self._turns = Turns()

    @property
    def can_capture(self) -> bool:
        """Whether steps can be captured at all."""
        return self._runner.can_capture

    def capture(self, how: Capture) -> tuple[int, ...]:
        """Capture steps of few rows; returns the sizes that steps are filled up to from then on. Raises RuntimeError
        where something cannot be captured; then steps run as they are.
        """
        sizes = sizes_up_to(self._launch.max_running * (self._launch.policy.k_max + 1))
        most_blocks = self._launch.max_running * self.pool.blocks_for(self.max_context)
        self._runner.capture(self._loaded.forward, how, sizes=sizes, most_blocks=most_blocks)
        self.policy.reckon(replace(self.policy.costs, sizes=sizes))
        return sizes

    @contextmanager
    def lent(self, policy: Policy, proposers: Iterable[Proposer] | None = None) -> Iterator[None]:
        """With another policy in the place of its own, and other proposers if they are given."""
        kept = self._policy, self._roster, self.steps
        self._policy = policy
        if proposers is not None:
            self._roster = Roster(proposers)
        try:
            yield
        finally:
            self._policy, self._roster, self.steps = kept

    @property
    def model_type(self) -> str:
        """transformers' name of the architecture."""
        return self._loaded.model_type

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """Those who may draft, in the order in which they were configured."""
        return self._roster.proposers

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompts, so that texts do not go on from them."""
        return bool(self._loaded.start)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._busy or len(self._entrance) > 0

    @property
    def _busy(self) -> bool:
        """Whether there is more to do than to wait for grammars."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._outbox)

    def submit(self, request: Request) -> None:
        """Queue a request. One that cannot run is answered with an error by the next step."""
        self._outbox += self._entrance.submit(request)

    def cancel(self, request: str) -> None:
        """End a request, all its texts; the next step says so. Unknown ids are ignored."""
        for sequence in self.scheduler.texts(request):
            self._outbox.append(self._end(sequence, Ending([], 0, 0, "cancelled")))
        self._outbox += self._entrance.cancel(request)

    def configure(
        self, policy: PolicySettings, draft: DraftSettings, verification: Verification = "block"
    ) -> None:
        """Take over hot settings. Raises DraftSettingsError, changing nothing."""
        if draft != self._draft_settings:
            before = self.proposers
            self._roster = self._proposers.roster(draft)
            self._draft_settings = draft
            self._meet([each for each in self.proposers if each not in before])
            self.policy.recheck()
        self._verification = verification
        self.policy.configure(policy)

    def adopt(self, drafts: Mapping[str, DraftCost]) -> None:
        """Have the policy reckon with what was measured of these proposers."""
        self.policy.adopt(drafts)
        self.unmeasured = tuple(each for each in self.unmeasured if each.name not in drafts)

    def step(self) -> StepReport:
        """schedule -> choose k -> draft -> verify -> commit -> observe."""
        self._outbox += self._entrance.compiled(busy=self._busy)
        watch = Stopwatch.start()
        schedule = self._schedule()
        decisions = self._choose(schedule)
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
        self._tell(rounds)
        committed = sum(len(ending.tokens) for ending in endings[: len(schedule.decodes)])
        seen = seen_of(schedule, batch, drafting, committed=committed, now=now(), seconds=watch.total)
        self._observe(rounds, decisions, endings, seen)
        outputs = self._answer(work, endings)
        self.steps += 1
        phases = PhaseSeconds(schedule=scheduled, draft=drafted, verify=verified, commit=watch.lap())
        return StepReport(
            step=self.steps,
            phases=phases,
            rows=batch.real_rows,
            padded_rows=batch.padding,
            prefill_rows=schedule.prefill_rows,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self._entrance),
            committed=committed,
            kv=self.kv_usage(),
            load_state=self._policy.load_state,
            rounds=rounds,
            outputs=outputs,
            preempted=schedule.preempted,
            cost_errors=() if self.steps % _TELLS_ERRORS else self.policy.cost_errors(),
        )

    def abandon(self, why: str) -> StepReport:
        """A step has failed half-way: end what runs, and begin anew with an empty pool. What waits goes on.

        The report is of no step: it has the outputs alone.
        """
        for sequence in self.scheduler.abandon():
            self._policy.forget(sequence.id)
            self._roster.forget(sequence.id)
            self._outbox.append(output(sequence, Ending([], 0, 0, "error", why), sequence.report()))
        everything = range(self.pool.total)
        self._memory.clear(everything)
        self._proposers.distrust(everything)
        return of_no_step(
            self.kv_usage(),
            step=self.steps,
            waiting=len(self.scheduler.waiting) + len(self._entrance),
            load_state=self._policy.load_state,
            outputs=self._sent(),
            failed=why,
        )

    def kv_usage(self) -> KVUsage:
        """Blocks by state."""
        return KVUsage(free=self.pool.free, used=self.pool.used, cached=self.pool.cached)

    def check_integrity(self) -> None:
        """Assert that no block is lost or held twice."""
        self.scheduler.check_integrity()

    def _meet(self, new: list[Proposer]) -> None:
        """Believe what new proposers say of their costs, until they are measured; keep what is known of the others."""
        plain = self.policy.costs.plain
        self.policy.adopt({each.name: DraftCost(each.cost * plain) for each in new})
        self.unmeasured = tuple(each for each in self.proposers if each in new or each in self.unmeasured)

    def _schedule(self) -> Schedule:
        schedule = self.scheduler.schedule()
        for copy in schedule.copies:
            self._memory.copy(copy.source, copy.target)
        return schedule

    def _choose(self, schedule: Schedule) -> list[Decision]:
        """One decision per decoding sequence; room for its draft is reserved before anyone writes there."""
        decodes, wants = schedule.decodes, self._policy.wants_options
        load = LoadView(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_free=self.pool.available / self.pool.total,
            now=now(),
            context=sum(sequence.table.committed for sequence in decodes),
            prefill_rows=schedule.prefill_rows,
        )
        views = [
            view(sequence, self._roster.options if wants or sequence.request.k else None)
            for sequence in decodes
        ]
        decisions = self._policy.decide(load, views)
        return [
            granted(decision, self.scheduler.grant(sequence, decision.tokens))
            if decision.tokens
            else decision
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

    def _tell(self, rounds: list[Round]) -> None:
        """What was behind one of the decisions, if its turn has come; each text has its own."""
        place = self._turns.next(len(rounds))
        if place is not None:
            rounds[place] = told(rounds[place], self._policy.account(place))

    def _observe(
        self, rounds: list[Round], decisions: list[Decision], endings: list[Ending], step: StepSeen
    ) -> None:
        """Let the policy learn from the rounds. endings: theirs, then those of prompts."""
        shown = zip(rounds, decisions, endings, strict=False)
        self._policy.observe([observation(*each) for each in shown if each[0].drafted], step)

    def _answer(self, work: list[Work], endings: list[Ending]) -> list[Output]:
        """What the requests are told, those refused or cancelled since the last step included."""
        for (sequence, _), ending in zip(work, endings, strict=True):
            self._outbox.append(
                output(sequence, ending) if ending.finish is None else self._end(sequence, ending)
            )
        return self._sent()

    def _sent(self) -> list[Output]:
        """What was to be told, all of it."""
        outputs, self._outbox = self._outbox, []
        return outputs

    def _end(self, sequence: Sequence, ending: Ending) -> Output:
        if ending.distrusts:
            suspects = self.pool.distrust(sequence.table.blocks)
            self._memory.clear(suspects)
            self._proposers.distrust(suspects)
        self.scheduler.remove(sequence)
        self._policy.forget(sequence.id)
        self._roster.forget(sequence.id)
        return output(sequence, ending, sequence.report())


def _silent(_: str) -> None:
    """Says nothing."""


def _rows(sequence: Sequence, rows: int, draft: Draft, *, logits: int) -> Span:
    """The next `rows` uncomputed tokens of a sequence, and its draft after them."""
    start = sequence.table.committed
    tokens = sequence.tokens[start : start + rows] + draft.tokens
    return Span(sequence.table, start, tokens, logits, draft.parents)
