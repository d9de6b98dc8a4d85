"""Step after step: what a second is worth, and what is taken at that price.

price   of a second: the tokens that one brought on average in the last steps. Over many steps the most tokens come of
        taking in each what brings the largest surplus at the average of all (renewal reward; Dinkelbach's ratio, over
        time). So one pass is enough for a step, where a step by itself would take several to find its own price
ratio   the price in plain steps' tokens for a plain step's seconds: what carries over from one batch to another
check   once in `CHECK_EVERY` steps the whole batch is reckoned exactly (`policies.goodput.allocate`). Where that is
        better, as where a step's cost goes by large stairs, so are the steps until the next check
"""

from typing import Final

from policies.goodput import Allocation, Offers, Prices, allocate, at_price

CHECK_EVERY: Final = 32
"""Steps."""

_REMEMBERED: Final = 16.0  # steps behind a price
_BETTER: Final = 0.01  # of a step's tokens: surplus by which exactness must be ahead


class Market:
    """Allocates for one engine, whose costs change slowly."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0  # of the last steps, by what plain ones would have had
        self._rows = 0.0  # drafted for a request in the last step
        self._steps = 0
        self._exactly = False
        self._near: Allocation | None = None  # the last exact one

    def allocate(self, offers: Offers, prices: Prices, bound: float | None) -> Allocation:
        """For the next step. bound: seconds that it may take, which is reckoned exactly."""
        requests = len(offers.held)
        price = self._price(requests, prices)
        quick = None
        if price and bound is None:
            quick = at_price(offers, prices, price, round(self._rows * (requests - 1)))
        self._steps += 1
        found = quick
        if quick is None or self._exactly or self._steps % CHECK_EVERY == 0:
            found = self._exact(offers, prices, bound)
            if quick is not None and self._steps % CHECK_EVERY == 0:
                ahead = (found.tokens - quick.tokens) - price * (found.seconds - quick.seconds)
                self._exactly = ahead > _BETTER * quick.tokens
        assert found is not None
        self._learn(found, requests, prices)
        return found

    def _price(self, requests: int, prices: Prices) -> float:
        """Of a second; 0 before the first step."""
        if not self._seconds:
            return 0.0
        return self._tokens / self._seconds * requests / float(prices.step[0])

    def _exact(self, offers: Offers, prices: Prices, bound: float | None) -> Allocation:
        near = self._near if self._near is not None and len(self._near.limits) == len(prices.level) else None
        self._near = allocate(offers, prices, bound=bound, near=near)
        return self._near

    def _learn(self, found: Allocation, requests: int, prices: Prices) -> None:
        kept = 1.0 - 1.0 / _REMEMBERED
        self._tokens = self._tokens * kept + found.tokens / requests
        self._seconds = self._seconds * kept + found.seconds / float(prices.step[0])
        self._rows = found.rows / requests
