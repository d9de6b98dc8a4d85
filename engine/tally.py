"""What became of a text's rounds, as its client is told. No torch."""

from collections import Counter

from engine.api import RequestReport


class Tally:
    """Counts a text's rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self.drafted = 0
        self._examined: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._k: Counter[int] = Counter()
        self._proposers: Counter[str] = Counter()

    def add(self, k: int, proposer: str, drafted: int, examined: int, accepted: int) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += drafted
        self._k[k] += 1
        if drafted:
            self._proposers[proposer] += 1
        self._examined.update(range(examined))
        self._accepted.update(range(accepted))

    def report(self, prompt_tokens: int, tokens: int) -> RequestReport:
        """The counts as they go over the wire."""
        depth = max(self._examined, default=-1) + 1
        return RequestReport(
            rounds=self.rounds,
            drafted=self.drafted,
            examined=[self._examined[j] for j in range(depth)],
            accepted=[self._accepted[j] for j in range(depth)],
            k_histogram=dict(sorted(self._k.items())),
            proposers=dict(self._proposers),
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )
