"""What others are told of a round: the policy before and after it, the daemon, and the client."""

from collections.abc import Callable

from engine.api import FinishReason, Output, Request, RequestReport, Round
from engine.batch import RaggedBatch
from engine.commit import Ending
from engine.draft.base import Draft
from engine.draft.match import LONGEST_DRAFT
from engine.scheduler import Schedule
from engine.sequence import Sequence
from engine.tally import Tally
from policies.base import Decision, Drafting, Observation, Option, Reason, RequestView, StepSeen


def view(sequence: Sequence, options: Callable[[Sequence], tuple[Option, ...]] | None) -> RequestView:
    """What the policy may know of a text. options: what there is to draft with, asked for where drafts are allowed;
    None where nobody wants to know.
    """
    request = sequence.request
    speculate = request.speculate and request.sampling.prompt_logprobs is None
    return RequestView(
        request=sequence.id,
        traffic_class=request.traffic_class,
        tenant=request.tenant,
        remaining_tokens=sequence.remaining,
        context_tokens=len(sequence.tokens),
        speculate=speculate,
        fixed_k=request.k,
        forced=_forced(sequence) if speculate else 0,
        options=_offered(request, options(sequence)) if speculate and options is not None else (),
        k_max=request.k_max,
    )


def _offered(request: Request, options: tuple[Option, ...]) -> tuple[Option, ...]:
    if request.proposer is None:
        return options
    return tuple(option for option in options if option.proposer == request.proposer)


def _forced(sequence: Sequence) -> int:
    """Next tokens that its grammar leaves no choice about: as many as a draft can have."""
    if sequence.grammar is None:
        return 0
    return len(sequence.grammar.forced(min(LONGEST_DRAFT, sequence.remaining - 1)))


def granted(decision: Decision, room: int) -> Decision:
    """The decision, with no more tokens than the pool had room for."""
    if room == decision.tokens:
        return decision
    reason = Reason.FORCED if room and decision.reason is Reason.FORCED else Reason.NO_ROOM
    text = f"no room: the KV blocks left hold {room} of {decision.tokens} drafted tokens"
    return Decision(
        min(decision.k, room), reason, text, decision.option if room else None, room if decision.nodes else 0
    )


def count_round(sequence: Sequence, decision: Decision, draft: Draft, ending: Ending) -> Round:
    """Add a round to the text's tally."""
    asked = "none" if decision.option is None else decision.option.proposer
    proposer = draft.proposer or asked
    drafted = len(draft.tokens)
    sequence.tally.add(decision.k, proposer, drafted, ending.examined, ending.accepted)
    return Round(
        request=sequence.id,
        traffic_class=sequence.request.traffic_class,
        proposer=proposer,
        k=decision.k,
        drafted=drafted,
        examined=ending.examined,
        accepted=ending.accepted,
        reason=decision.reason,
        text=decision.text,
        chances=ending.chances,
    )


def observation(r: Round, decision: Decision, ending: Ending) -> Observation:
    """What the policy learns from a round."""
    option = decision.option
    return Observation(
        r.request,
        r.traffic_class,
        r.proposer,
        r.drafted,
        r.examined,
        r.accepted,
        grade=0 if option is None else option.grade,
        width=1 if option is None else option.width,
        chances=ending.chances,
    )


def seen_of(
    schedule: Schedule,
    batch: RaggedBatch,
    drafting: tuple[Drafting, ...],
    *,
    committed: int,
    now: float,
    seconds: float,
) -> StepSeen:
    """What the policy learns from a step as a whole."""
    return StepSeen(
        now=now,
        seconds=seconds,
        rows=batch.rows,
        prefill_rows=schedule.prefill_rows,
        padding=batch.padding,
        sequences=len(schedule.decodes),
        context=sum(len(sequence.tokens) for sequence in schedule.decodes),
        committed=committed,
        drafting=drafting,
    )


def output(sequence: Sequence, ending: Ending, report: RequestReport | None = None) -> Output:
    """What the step's ending adds; it is in the sequence's text already."""
    first = sequence.generated == len(ending.tokens) and not sequence.unjudged
    return Output(
        id=sequence.request.id,
        index=sequence.index,
        tokens=ending.tokens,
        logprobs=ending.logprobs,
        prompt_logprobs=sequence.prompt_logprobs if first else None,
        finish=ending.finish,
        error=ending.error,
        refused=ending.refused,
        report=report,
    )


def unstarted(request: Request, finish: FinishReason) -> list[Output]:
    """What each text of a request is told that ends before it has begun."""
    report = Tally().report(len(request.prompt), 0)
    return [
        Output(id=request.id, index=index, tokens=[], finish=finish, report=report)
        for index in range(request.n)
    ]
