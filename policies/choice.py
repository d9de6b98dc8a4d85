"""What a step gives to each request: in arrays, and as decisions that say why."""

from typing import Final, NamedTuple

import numpy as np

from policies.base import Decision, Option, Reason
from policies.columns import Options
from policies.lengths import Ints
from policies.settings import PolicySettings

_MOST_MADE: Final = 1 << 14  # decisions that are kept

OWN, OF_CLASS, LOW, NO_OFFER, SLOWER, PLAIN, PROBE = range(7)

_REASONS: Final = (
    (Reason.ACCEPTANCE, "brings the batch most with k = {k}, by what this request has shown"),
    (Reason.CLASS_PRIOR, "brings the batch most with k = {k}, by what its class has shown"),
    (Reason.LOW_ACCEPTANCE, "a draft costs more than it brings"),
    (Reason.NO_OFFER, "no proposer has a guess"),
    (Reason.SLOWER, "drafts were measured to be slower here"),
    (Reason.PLAIN, "a step without drafts, to compare"),
    (Reason.PROBE, "probes with k = {k}"),
)
_UNDECIDED: Final = Decision(0, Reason.NO_OFFER, "")


class Choice(NamedTuple):
    """What each request gets."""

    place: Ints  # [b]
    k: Ints  # [b]
    code: Ints  # [b] index of the reason in _REASONS

    def changed(self, other: "Choice") -> list[int]:
        """Places in the batch at which they differ."""
        differ = (self.place != other.place) | (self.k != other.k) | (self.code != other.code)
        found: list[int] = np.flatnonzero(differ).tolist()
        return found


class _Decided(NamedTuple):
    """The step before."""

    options: Options
    choice: Choice
    decisions: list[Decision]


class Worded:
    """Makes decisions of choices, most of which are those of the step before."""

    def __init__(self, settings: PolicySettings) -> None:
        self._made: dict[tuple[Option | None, int, int], Decision] = {}
        self.configure(settings)

    def configure(self, settings: PolicySettings) -> None:
        """Take other settings."""
        self._nodes = settings.tree_nodes
        self._made.clear()
        self._last: _Decided | None = None

    def decisions(self, options: Options, choice: Choice) -> list[Decision]:
        """Those that are as in the step before are the same objects."""
        if self._last is None or self._last.options != options:
            changed, decisions = list(range(len(options))), [_UNDECIDED] * len(options)
        else:
            changed, decisions = self._last.choice.changed(choice), self._last.decisions.copy()
        if len(self._made) > _MOST_MADE:
            self._made.clear()
        made, (places, ks, codes) = self._made, (each.tolist() for each in choice)
        for i in changed:
            key = (options[i][places[i]] if ks[i] else None, ks[i], codes[i])
            decisions[i] = made.get(key) or made.setdefault(key, self._decision(*key))
        self._last = _Decided(options, choice, decisions)
        return decisions.copy()

    def _decision(self, option: Option | None, k: int, code: int) -> Decision:
        reason, text = _REASONS[code]
        if option is None:
            return Decision(k, reason, text)
        nodes = option.nodes(k, self._nodes)
        return Decision(k, reason, f"{option.proposer} {text.format(k=k)}", option, nodes)
