"""What was decided in a step and holds for the next ones, which then cost next to nothing to decide.

stands   as long as the same requests are offered the same, nothing was learned, and nobody is to be probed. Who does
         not draft owes more with every step, which is no reason to draft
doze     of requests for whom nothing of all that there is has been worth drafting in the last `QUIET` steps: what they
         are offered is looked at in one step of `DOZE`, and when somebody is to be probed
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from policies.base import Decision, Option
from policies.columns import Options
from policies.exploring import Batch, Exploring
from policies.lengths import Ints
from policies.standing import Standing

_OWED: Final = Option._fields.index("owed")  # what comes before it says what the option is

QUIET: Final = 64
DOZE: Final = 32
"""A look costs a small step a few percent."""


class Asked(NamedTuple):
    """All that a decision hangs on, beside what was learned."""

    options: Options
    requests: Sequence[str]
    classes: Sequence[str]
    rows: int  # of the step, without drafts


class _Stands(NamedTuple):
    asked: Asked
    seconds: float  # that the step was reckoned to take
    plain: float  # without drafts
    batch: Batch
    idle: Ints  # places of those that do not draft
    decisions: list[Decision]


class _Doze(NamedTuple):
    request: Sequence[str]
    rows: Ints  # see policies.standing
    decisions: list[Decision]
    left: int  # steps


class Kept:
    """Of one engine. Whoever decides anew drops it first."""

    def __init__(self, standing: Standing, exploring: Exploring) -> None:
        self._standing = standing
        self._exploring = exploring
        self._stands: _Stands | None = None
        self._doze: _Doze | None = None
        self._worth_it = 0  # the last step in which something was worth drafting, or might have been
        self.blind = False
        """Whether what is decided now was not looked at: others than those who doze."""

    @property
    def is_dozing(self) -> bool:
        """Whether the next step needs no look at what is offered."""
        return self._doze is not None

    def drop(self) -> None:
        """The next step is decided anew."""
        self.blind = self.is_dozing
        self._stands = self._doze = None

    def reconsider(self) -> None:
        """Something was learned: nothing stands."""
        self._stands = None

    def dozed(self, requests: Sequence[str]) -> list[Decision] | None:
        """Plain steps for these; None where it is time to look."""
        doze = self._doze
        if doze is None or doze.request != requests:
            return None
        self._standing.idle[doze.rows] += 1
        self._exploring.earn(1.0, 1.0)
        self._doze = doze._replace(left=doze.left - 1) if doze.left > 1 else None
        return doze.decisions.copy()

    def stood(self, asked: Asked) -> list[Decision] | None:
        """What stands where so much is asked; None where that is something else, or somebody is to be probed."""
        stands, self._stands = self._stands, None
        if stands is None or not _holds(stands, asked):
            return None
        if not self._exploring.may_pass(stands.batch, stands.idle):
            return None
        self._stands = stands
        self._exploring.earn(stands.seconds, stands.plain)
        return stands.decisions.copy()

    def was_worth_it(self, step: int) -> None:
        """Something was worth drafting in this step, or might have been."""
        self._worth_it = step

    def doze(self, requests: Sequence[str], rows: Ints, decisions: list[Decision], step: int) -> bool:
        """Go on like this without a look, if nothing has been worth it for long. Returns whether that is so."""
        left = min(DOZE, self._exploring.due_in(rows)) - 1
        if step - self._worth_it < QUIET or left <= 0:
            return False
        self._doze = _Doze(requests, rows, decisions.copy(), left)
        return True

    def stand(
        self,
        asked: Asked,
        seconds: tuple[float, float],
        batch: Batch,
        idle: Ints,
        decisions: list[Decision],
    ) -> None:
        """Have this stand. seconds: of the step, and of a plain one. idle: see `Exploring.may_pass`."""
        self._stands = _Stands(asked, *seconds, batch, idle, decisions.copy())


def _holds(stands: _Stands, asked: Asked) -> bool:
    """Whether what was decided is right for this too."""
    before = stands.asked
    if asked[1:] != before[1:]:
        return False
    if asked.options == before.options:
        return True
    pairs = zip(stands.decisions, before.options, asked.options, strict=True)
    return all(was == now or (decision.k == 0 and _owe_more(was, now)) for decision, was, now in pairs)


def _owe_more(before: Sequence[Option], now: Sequence[Option]) -> bool:
    """Whether options are those of before, but that more is to be read for them."""
    return len(before) == len(now) and all(
        now.owed >= was.owed and now[:_OWED] == was[:_OWED] for was, now in zip(before, now, strict=True)
    )
