"""Step after step: what a second is worth, and what is taken at that price.

price   of a second: the tokens that one brought on average in the last steps. Over many steps the most tokens come of
        taking in each what brings the largest surplus at the average of all (renewal reward; Dinkelbach's ratio, over
        time). So one pass is enough for a step, where a step by itself would take several to find its own price
ratio   the price in plain steps' tokens for a plain step's seconds: what carries over from one batch to another of
        about as many requests; beyond a factor of two, only until it is known better
check   once in `CHECK_EVERY` steps the whole batch is reckoned exactly (`policies.goodput.allocate`). Where that is
        better, as where a step's cost goes by large stairs, so are the steps until the next check
"""

from typing import Final

from policies.goodput import Allocation, Offers, Prices, allocate, alone, at_price

CHECK_EVERY: Final = 32
"""Steps."""

_REMEMBERED: Final = 16.0  # steps behind a price
_BETTER: Final = 0.02  # of a step's tokens: surplus by which exactness must be ahead


class Market:
    """Allocates for one engine, whose costs change slowly."""

    def __init__(self) -> None:
        # By size of batch: (tokens, seconds) of the last steps, in plain ones.
        self._brought: dict[int, tuple[float, float]] = {}
        self._last = 0.0, 0.0  # those of the last step's number of requests
        self._rows = 0.0  # drafted for a request in the last step
        self._steps = 0
        self._exactly = False
        self._near: Allocation | None = None  # the last exact one

    def allocate(self, offers: Offers, prices: Prices, bound: float | None) -> Allocation:
        """For the next step. bound: seconds that it may take, which is reckoned exactly."""
        requests = len(offers.held)
        price = self._price(requests, prices)
        quick = None if bound is not None or not price else self._quick(offers, prices, price)
        self._steps += 1
        check = self._steps % CHECK_EVERY == 0
        found = quick
        if found is None or check or self._exactly:
            found = self._exact(offers, prices, bound)
        if quick is not None and check:
            ahead = (found.tokens - quick.tokens) - price * (found.seconds - quick.seconds)
            self._exactly = ahead > _BETTER * quick.tokens
        self._learn(found, requests, prices)
        return found

    def _quick(self, offers: Offers, prices: Prices, price: float) -> Allocation | None:
        requests = len(offers.held)
        if requests == 1:
            return alone(offers, prices, price)
        return at_price(offers, prices, price, round(self._rows * (requests - 1)))

    def _price(self, requests: int, prices: Prices) -> float:
        """Of a second; 0 before the first step."""
        tokens, seconds = self._brought.get(requests.bit_length(), self._last)
        return tokens / seconds * requests / float(prices.step[0]) if seconds else 0.0

    def _exact(self, offers: Offers, prices: Prices, bound: float | None) -> Allocation:
        near = self._near if self._near is not None and len(self._near.limits) == len(prices.level) else None
        self._near = allocate(offers, prices, bound=bound, near=near)
        return self._near

    def _learn(self, found: Allocation, requests: int, prices: Prices) -> None:
        band, kept = requests.bit_length(), 1.0 - 1.0 / _REMEMBERED
        tokens, seconds = self._brought.get(band, self._last)
        self._last = self._brought[band] = (
            tokens * kept + found.tokens / requests,
            seconds * kept + found.seconds / float(prices.step[0]),
        )
        self._rows = found.rows / requests
