"""What became of a text's rounds, as its client is told. No torch."""

from collections import Counter
from itertools import accumulate

from engine.api import RequestReport

_Kind = tuple[int, str, int, int, int]  # k, proposer, drafted, examined, accepted


class Tally:
    """Counts a text's rounds. Each step adds one for each text, so all but the count waits for the report."""

    def __init__(self) -> None:
        self._rounds: Counter[_Kind] = Counter()

    def add(self, k: int, proposer: str, drafted: int, examined: int, accepted: int) -> None:
        """Count one round."""
        self._rounds[k, proposer, drafted, examined, accepted] += 1

    def report(self, prompt_tokens: int, tokens: int) -> RequestReport:
        """The counts as they go over the wire."""
        ks: Counter[int] = Counter()
        proposers: Counter[str] = Counter()
        examined_lengths: Counter[int] = Counter()
        accepted_lengths: Counter[int] = Counter()
        for (k, proposer, drafted, examined, accepted), rounds in self._rounds.items():
            ks[k] += rounds
            examined_lengths[examined] += rounds
            accepted_lengths[accepted] += rounds
            if drafted:
                proposers[proposer] += rounds
        deepest = max(examined_lengths, default=0)
        return RequestReport(
            rounds=self._rounds.total(),
            drafted=sum(kind[2] * rounds for kind, rounds in self._rounds.items()),
            examined=_reached(examined_lengths, deepest),
            accepted=_reached(accepted_lengths, deepest),
            k_histogram=dict(sorted(ks.items())),
            proposers=dict(proposers),
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )


def _reached(lengths: Counter[int], deepest: int) -> list[int]:
    """From rounds by length to rounds that reached position 1, 2, ..., `deepest`."""
    return list(accumulate(lengths[length] for length in range(deepest, 0, -1)))[::-1]
