"""The loop: who comes, who runs, what the step takes, what it brings.

A step is the engine's: every decoding request has a row and its draft, and prompts have the rows that are left. KV
memory is not simulated: what may run is bounded by `max_running` alone, and nothing is preempted or found in a cache.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.base import Drafting, LoadView, StepSeen
from policies.simulate.contenders import Batch, Contender
from policies.simulate.machine import NO_JITTER, Jitter, Machine, PromptRows
from policies.simulate.outcome import Ledger, Outcome
from policies.simulate.texts import Texts
from policies.simulate.trace import Trace

_REQUEST, _PLACE, _LEFT, _CONTEXT, _STRETCH = range(5)
_TELL_EVERY: Final = 256  # steps


class _Prompt:
    """A prompt that is being computed."""

    __slots__ = ("computed", "missing", "request")

    def __init__(self, request: int, tokens: int) -> None:
        self.request = request
        self.computed = 0
        self.missing = tokens


class _Work(NamedTuple):
    """What a step has to do, in numbers."""

    prompts: PromptRows
    context: int  # of those that decode
    sequences: int
    drafting: int  # sequences with a draft
    levels: int
    tokens: int  # of all drafts

    @property
    def rows(self) -> int:
        return self.sequences + self.tokens + self.prompts.rows


def simulate(
    trace: Trace,
    machine: Machine,
    texts: Texts,
    contender: Contender,
    *,
    jitter: Jitter = NO_JITTER,
    tell: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """One policy on one trace. tell: how many requests have ended, now and then."""
    world = _World(trace, machine, texts, contender, jitter)
    while world.ended < len(trace):
        world.advance()
        if world.ledger.steps % _TELL_EVERY == 0:
            tell(world.ended)
    tell(world.ended)
    return world.ledger.outcome(contender.name, world.now, contender.reasons)


class _World:
    """All state of a simulation. `state[:, :decoding]` are those that decode, a column each."""

    def __init__(
        self, trace: Trace, machine: Machine, texts: Texts, contender: Contender, jitter: Jitter
    ) -> None:
        self._arrivals = trace.arrival.tolist()
        self._prompt_tokens = trace.context.tolist()
        self._answer_tokens = trace.generated.tolist()
        self._machine, self._texts, self._contender = machine, texts, contender
        self._draft = machine.costs.draft(machine.proposer)
        self._costs = machine.costs.table(machine.most_rows + machine.max_running * texts.k_max)
        self._key, self._sequence = machine.costs.key, machine.costs.sequence
        self._jitter = jitter
        self._prompts: deque[_Prompt] = deque()
        self._state = np.zeros((5, machine.max_running), dtype=np.int64)
        self._rates = np.zeros((machine.max_running, texts.k_max))
        self._decoding = self._context = 0
        self._arrived = self._admitted = 0
        self.now = 0.0
        self.ended = 0
        self.ledger = Ledger()

    def advance(self) -> None:
        """A step; or several at once, or a wait, where nothing else happens in between."""
        self._admit()
        if not self._decoding and not self._prompts:
            self.now = self._arrivals[self._arrived]
        elif self._contender.idle and not self._prompts:
            self._jump()
        else:
            self._step()

    @property
    def _running(self) -> int:
        return self._decoding + len(self._prompts)

    def _admit(self) -> None:
        while self._arrived < len(self._arrivals) and self._arrivals[self._arrived] <= self.now:
            self._arrived += 1
        while self._admitted < self._arrived and self._running < self._machine.max_running:
            self._prompts.append(_Prompt(self._admitted, self._prompt_tokens[self._admitted]))
            self._admitted += 1

    def _step(self) -> None:
        running, waiting = self._running, self._arrived - self._admitted
        prompts = self._machine.prompt_rows(self._decoding)
        begun = self._compute(prompts)
        if self._decoding:
            load = LoadView(running, waiting, 1.0, self.now, self._context, prompts.rows)
            self._round(load, prompts)
        else:
            self._pass(_Work(prompts, 0, 0, 0, 0, 0))
        self.ledger.steps += 1
        for prompt in begun:
            self._begin(prompt.request)

    def _compute(self, rows: PromptRows) -> list[_Prompt]:
        """Give prompts their rows; those that end with them."""
        for prompt in self._prompts:
            taken = rows.take(prompt.computed, prompt.missing)
            if not taken:
                break
            prompt.computed += taken
            prompt.missing -= taken
        begun = []
        while self._prompts and not self._prompts[0].missing:  # who came first has its rows first
            begun.append(self._prompts.popleft())
        return begun

    def _round(self, load: LoadView, prompts: PromptRows) -> None:
        """Those that decode draft and verify."""
        state = self._state[:, : self._decoding]
        k = self._contender.lengths(load, Batch(state[_REQUEST], state[_CONTEXT]))
        drafting = int(np.count_nonzero(k))
        levels, tokens = (int(k.max()), int(k.sum())) if drafting else (0, 0)
        work = _Work(prompts, self._context, self._decoding, drafting, levels, tokens)
        accepted = self._accepted(state, k) if drafting else k
        drafted, seconds = self._pass(work)
        gained = np.minimum(accepted + 1, state[_LEFT])
        committed = int(gained.sum())
        self._note(seconds, k, committed, int(accepted.sum()))
        step = self._seen(work, committed, drafted, seconds)
        self._contender.observe(np.minimum(accepted + 1, k), accepted, step)
        self._commit(state, gained, committed)

    def _accepted(self, state: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.int64]:
        rates = self._rates[: self._decoding]
        if self._texts.switches:
            stretch = self._texts.stretch(state[_PLACE])
            moved = np.flatnonzero(stretch != state[_STRETCH])
            if len(moved):
                state[_STRETCH, moved] = stretch[moved]
                rates[moved] = self._texts.rates(state[_REQUEST, moved], stretch[moved])
        return self._texts.accepted(state[_REQUEST], state[_PLACE], rates, k, self.now)

    def _pass(self, work: _Work) -> tuple[float, float]:
        """Let the time of a step pass: (of its drafts, of all of it)."""
        drafted = self._draft.of(work.levels, work.tokens)
        beside = self._key * work.context + self._machine.prompt_key * work.prompts.attended
        beside += self._sequence * work.sequences
        factor = self._jitter.of(self.ledger.steps)
        seconds = (float(self._costs[work.rows]) + beside + drafted) * factor
        self.now += seconds
        return drafted * factor, seconds

    def _note(self, seconds: float, k: NDArray[np.int64], committed: int, accepted: int) -> None:
        self.ledger.lengths.append(seconds)
        self.ledger.decoded.append(len(k))
        self.ledger.tokens += committed
        self.ledger.accepted += accepted
        self.ledger.count(k)

    def _seen(self, work: _Work, committed: int, drafted: float, seconds: float) -> StepSeen:
        padding = self._machine.padding(work.rows)
        drafting = Drafting(self._machine.proposer, drafted, work.drafting, work.levels, work.tokens)
        return StepSeen(
            now=self.now,
            seconds=seconds,
            rows=work.rows + padding,
            prefill_rows=work.prompts.rows,
            padding=padding,
            sequences=work.sequences,
            context=work.context,
            committed=committed,
            drafting=(drafting,) if work.drafting else (),
        )

    def _commit(self, state: NDArray[np.int64], gained: NDArray[np.int64], committed: int) -> None:
        state[_PLACE] += gained
        state[_CONTEXT] += gained
        state[_LEFT] -= gained
        self._context += committed
        if not state[_LEFT].all():
            self._leave(state)

    def _leave(self, state: NDArray[np.int64]) -> None:
        """Those with nothing left end, the others close up."""
        stays = state[_LEFT] > 0
        gone = state[:, ~stays]
        self._contender.forget(gone[_REQUEST].tolist())
        self._context -= int(gone[_CONTEXT].sum())
        self.ended += gone.shape[1]
        rates = self._rates[: self._decoding][stays]
        self._decoding -= gone.shape[1]
        self._state[:, : self._decoding] = state[:, stays]
        self._rates[: self._decoding] = rates

    def _begin(self, request: int) -> None:
        """A prompt has been computed, and with it came the first token."""
        self.ledger.waits.append(self.now - self._arrivals[request])
        left = self._answer_tokens[request] - 1
        if not left:
            self.ended += 1
            return
        context = self._prompt_tokens[request] + 1
        at = self._decoding
        self._state[:, at] = request, 1, left, context, 0
        if not self._contender.idle:
            self._rates[at] = self._texts.rates(self._state[_REQUEST, at : at + 1], np.zeros(1, np.int64))[0]
        self._decoding += 1
        self._context += context

    def _jump(self) -> None:
        """Plain rounds until somebody ends, or comes and finds a place."""
        state = self._state[:, : self._decoding]
        rounds = np.arange(int(state[_LEFT].min()))
        contexts = self._context + self._decoding * rounds
        plain = self._costs[self._decoding] + self._sequence * self._decoding + self._key * contexts
        lengths = plain * self._jitter.of_each(self.ledger.steps + rounds)
        if self._arrived < len(self._arrivals) and self._running < self._machine.max_running:
            until = self._arrivals[self._arrived] - self.now
            lengths = lengths[: int(np.searchsorted(lengths.cumsum(), until)) + 1]
        count = len(lengths)
        self.now += float(lengths.sum())
        self.ledger.lengths += lengths.tolist()
        self.ledger.decoded += [self._decoding] * count
        self.ledger.tokens += count * self._decoding
        self.ledger.levels[0] += count * self._decoding
        self.ledger.steps += count
        self._commit(state, np.full(self._decoding, count), count * self._decoding)
