"""What a draft of k tokens is expected to bring, as formulas.

From Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (ICML 2023),
section 3. Acceptance is the chance that a drafted token is accepted once it is examined, taken as equal at
every position. Cost is what one drafted token adds to a step, in units of a plain decode step.
"""

from bisect import bisect_left

_HALVINGS = 60  # of the interval (0, 1]: beyond what a float resolves


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens that a round with k drafted tokens commits on average, the target's own included.

    Equation (1) there: (1 - a^(k+1)) / (1 - a), summed as 1 + a + ... + a^k so that a = 1 is no special case.
    """
    total = power = 1.0
    for _ in range(k):
        power *= acceptance
        total += power
    return total


def speedup(acceptance: float, k: int, cost: float) -> float:
    """How many times as many tokens a second as plain decoding, by which k = 0 is 1.

    Theorem 3.8 there, with a cost for each row that the target verifies as well as for each token drafted.
    """
    return expected_tokens(acceptance, k) / (1.0 + k * cost)


def best_k(acceptance: float, cost: float, k_max: int) -> int:
    """The k of 0 to k_max with the highest `speedup`; of equals the smallest."""
    return max(range(k_max + 1), key=lambda k: speedup(acceptance, k, cost))


class BestK:
    """`best_k` for one cost and k_max, prepared so that a lookup costs a bisection.

    Going from k-1 to k pays exactly when a^k / cost, the marginal gain, is above the speedup at k-1, that is
    when `1 + (k-1) cost > cost (a^-1 + ... + a^-k)`. The right side falls with a and the marginal gains fall
    with k, so each k has one acceptance above which it is worth its last token, and these ascend.
    """

    def __init__(self, cost: float, k_max: int) -> None:
        self._worth_above = [_threshold(k, cost) for k in range(1, k_max + 1)]

    def __call__(self, acceptance: float) -> int:
        """The best k at this acceptance."""
        return bisect_left(self._worth_above, acceptance)


def _threshold(k: int, cost: float) -> float:
    """The acceptance above which a k-th drafted token pays; 1 where none does."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _pays(k, cost, middle):
            high = middle
        else:
            low = middle
    return high


def _pays(k: int, cost: float, acceptance: float) -> bool:
    marginal: float = acceptance**k
    return marginal * (1.0 + (k - 1) * cost) > cost * expected_tokens(acceptance, k - 1)
