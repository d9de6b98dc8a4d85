"""What the load allows: a hard cap on every request's k, on top of whatever the policy would choose.

    running    no more levels than the table says for so many running requests; none above `off_above`
    context    no more than the context table says for so many attended tokens, all texts together
    KV         while requests wait and few blocks are left, less the fewer there are: what drafts take for a step may
               be what a waiting prompt would have found in the prefix cache, and a text that is preempted is computed
               twice

The least of them holds. A tighter cap holds at once. A looser one waits until the load has allowed it for
`dwell_steps` steps in a row, and once the cap is 0 the number running must first fall to `resume_at`:

    running  1 ........... 32   33 ... 48 ... 25   24 ............................. 1
    cap      as the table says  0                  as the table says, after each dwell

Beside the cap stands a bound on the seconds of a step, where latency comes first (`policies.latency`).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from policies.base import LoadState, LoadView, StepSeen
from policies.latency import LatencyBound
from policies.settings import LoadSettings, PolicySettings

Table = tuple[tuple[int, int], ...]

BY_HAND: Final[Table] = ((2, 8), (4, 6), (8, 3), (12, 1))
BY_HAND_OFF_ABOVE: Final = 12
"""For kinds that do not reckon with what a step costs at this load, on a host that nobody has calibrated. They suit
a processor of a few cores, where a row soon costs as much as the weights; a GPU bears several times as many."""

NO_CAP: Final = 1 << 16
"""More levels, and more requests, than there will ever be."""

UNCAPPED: Final = LoadSettings(table=((NO_CAP, NO_CAP),))
"""No cap by load, whatever the kind."""

MEASURES_LOAD: Final = frozenset({"goodput"})
"""Kinds whose choice has the load in it already."""


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """What one step may do."""

    cap: int
    state: LoadState
    text: str  # one clause for people: "load cap: 17 running > 16"
    bound: float | None = None  # seconds that drafts may make the step last; None for no bound


class LoadRules(NamedTuple):
    """The rules by running requests, with nothing left unset."""

    table: Table
    off_above: int
    resume_at: int


def rules_of(settings: PolicySettings) -> LoadRules:
    """What holds where the operator left something unset.

    No table: for a policy that decides by measured cost there is no cap, for others the table by hand. A table alone
    does not switch drafting off, unless it ends in 0.
    """
    load = settings.load
    by_hand = load.table is None and settings.kind not in MEASURES_LOAD
    table = load.table or (BY_HAND if by_hand else ((NO_CAP, NO_CAP),))
    off_above = load.off_above
    if off_above is None:
        off_above = BY_HAND_OFF_ABOVE if by_hand else NO_CAP
    resume_at = load.resume_at
    return LoadRules(table, off_above, off_above * 2 // 3 if resume_at is None else resume_at)


class LoadPolicy:
    """A state machine that is told the load once a step."""

    def __init__(self, settings: PolicySettings) -> None:
        self._latency = LatencyBound(None)
        self.configure(settings)
        self._cap = max(cap for _, cap in self._rules.table)

    def configure(self, settings: PolicySettings) -> None:
        """Change the rules. The cap in force stays until the next step, and a looser one has to dwell."""
        self._rules = rules_of(settings)
        self._settings = settings.load
        self._k_max = settings.k_max
        self._latency.configure(_allowed_seconds(settings))
        self._clear()

    def step(self, load: LoadView) -> LoadLimit:
        """The limit for the step that starts now."""
        allowed = min(self._by_running(load.running), self._by_context(load.context), self._by_kv(load))
        if allowed > self._cap:
            self._dwell(allowed)
        else:
            self._cap = allowed
            self._clear()
        cap = min(self._cap, self._k_max)
        return LoadLimit(cap, self._state(), self._text(load, allowed), self._latency.seconds)

    def observe(self, step: StepSeen) -> None:
        """Learn how long steps take, from one just done."""
        self._latency.observe(step)

    def _clear(self) -> None:
        self._waited = 0  # steps in a row that allowed more than the cap in force
        self._offered: int | None = None  # the least that they allowed

    def _dwell(self, allowed: int) -> None:
        self._waited += 1
        self._offered = allowed if self._offered is None else min(self._offered, allowed)
        if self._waited >= self._settings.dwell_steps:
            self._cap = self._offered
            self._clear()

    def _by_running(self, running: int) -> int:
        rules = self._rules
        if running > (rules.off_above if self._cap else rules.resume_at):
            return 0
        return by_table(rules.table, running)

    def _by_context(self, tokens: int) -> int:
        table = self._settings.context_table
        return by_table(table, tokens) if table else NO_CAP

    def _by_kv(self, load: LoadView) -> int:
        reserve = self._settings.kv_reserve
        if not load.waiting or load.kv_free >= reserve:
            return NO_CAP
        return int(self._k_max * load.kv_free / reserve)

    def _state(self) -> LoadState:
        if self._cap == 0:
            return LoadState.OFF
        return LoadState.FULL if self._cap >= self._k_max else LoadState.SHRUNK

    def _text(self, load: LoadView, allowed: int) -> str:
        subject = "load cap" if self._cap else "load off"
        if allowed > self._cap:
            return f"{subject}: held for {self._settings.dwell_steps - self._waited} more steps"
        return f"{subject}: {self._why(load, allowed)}"

    def _why(self, load: LoadView, allowed: int) -> str:
        if allowed == self._by_running(load.running):
            return self._why_running(load.running)
        if allowed == self._by_context(load.context):
            return _beyond(self._settings.context_table, load.context, "attended tokens")
        return f"{load.waiting} wait, {load.kv_free:.1%} of the KV is left < {self._settings.kv_reserve:.1%}"

    def _why_running(self, running: int) -> str:
        rules = self._rules
        if running > rules.off_above:
            return f"{running} running > {rules.off_above}"
        if not self._cap and by_table(rules.table, running) > 0:
            return f"{running} running > {rules.resume_at}, where drafting resumes"
        return _beyond(rules.table, running, "running")


def by_table(table: Table, count: int) -> int:
    """The cap at a count: that of the first pair which goes so far, else the last one's."""
    return next((cap for up_to, cap in table if count <= up_to), table[-1][1])


def unshrunk_up_to(settings: PolicySettings) -> int:
    """The most running requests at which the load can be FULL, as far as the settings say."""
    rules = rules_of(settings)
    if rules.table[-1][1] >= settings.k_max:
        return rules.off_above
    return min(
        rules.off_above, max((up_to for up_to, cap in rules.table if cap >= settings.k_max), default=0)
    )


def most_rows(settings: PolicySettings, running: int) -> int:
    """Of a step in which so many decode with drafts: many short chains, or trees where few run.

    A policy that reckons with rows gives all drafts together no more than chains of k_max, or one whole tree, would
    have.
    """
    if settings.kind in MEASURES_LOAD:
        return running + max(running * settings.k_max, settings.tree_nodes)
    with_trees = min(running, unshrunk_up_to(settings))
    return max(running * (settings.k_max + 1), with_trees * (settings.tree_nodes + 1))


def _beyond(table: Table, count: int, unit: str) -> str:
    """Which bound of the table a count has passed last."""
    passed = [up_to for up_to, _ in table[:-1] if count > up_to]
    if passed:
        return f"{count} {unit} > {passed[-1]}"
    return "none" if table[0][0] >= NO_CAP else f"{count} {unit} <= {table[0][0]}"


def _allowed_seconds(settings: PolicySettings) -> float | None:
    if settings.objective != "latency" or settings.latency_ms is None:
        return None
    return settings.latency_ms / 1e3
