"""Of which rounds it is told what was behind their decisions. No torch."""

from typing import Final

from msgspec import structs

from engine.api import Round
from policies.base import Account, Reason

_TELLS: Final = 64
"""Of so many rounds one is told of at most: that takes as long as to decide."""

_STEPS: Final = 8
"""Between two of which it is told, where a step has many rounds."""


class Turns:
    """Whose turn it is to be told of; each text has its own."""

    def __init__(self) -> None:
        self._steps = self._told = 0

    def next(self, rounds: int) -> int | None:
        """The place of one in a step of so many rounds; None where it is nobody's turn."""
        self._steps += 1
        if not rounds or self._steps * rounds % max(_TELLS, _STEPS * rounds) >= rounds:
            return None
        self._told += 1
        return self._told % rounds


def told(r: Round, account: Account) -> Round:
    """The round, with what was behind its decision; with the text that it has where it turned out otherwise."""
    if not account.goodput or r.reason == Reason.NO_ROOM:
        return r
    return structs.replace(r, text=account.text, goodput=account.goodput, alternatives=account.alternatives)
