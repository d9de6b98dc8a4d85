"""Block verification of a chain, in float64. A specification like `engine.verify.law`, whose words it uses.

Token by token, a draft is kept up to the first token that its coin rejects. Here every prefix has a coin of its own,
and the longest one kept counts, so a token that the draft overrates may be made up for by one that it underrates. No
rule that leaves the law as it is keeps more of a draft on average.

weight     of a prefix: the share of its draft probability that can be kept without exceeding the target's. It begins at
           1 and is multiplied by p/q token by token, cut at 1 each time.

Source: Sun, Mendlovic, Leviathan, Aharoni, Ro, Beirami and Suresh, "Block verification accelerates speculative
decoding", 2024.
"""

from collections.abc import Sequence

import numpy as np

from engine.verify.law import Law, Outcome, TreeOfLaws, draw, residual


def weights(p: Sequence[Law], q: Sequence[Law], draft: Sequence[int]) -> list[float]:
    """Of each prefix, from the empty one to the whole draft: k+1 numbers in [0, 1]."""
    found = [1.0]
    for j, token in enumerate(draft):
        ratio = 0.0 if q[j][token] == 0 else float(p[j][token] / q[j][token])
        found.append(min(found[-1] * ratio, 1.0))
    return found


def chance(weight: float, p: Law, q: Law) -> float:
    """Probability that a prefix is kept when no longer one is. p, q: the laws of the token that follows it.

    Longer prefixes keep min(weight p, q) of the mass, what is left to this one is the excess of weight p over q.
    """
    excess = float(np.maximum(weight * p - q, 0.0).sum())
    whole = excess + 1 - weight
    return 1.0 if whole == 0 else excess / whole  # p = q: a longer prefix is always kept


def chances(p: Sequence[Law], q: Sequence[Law], draft: Sequence[int]) -> list[float]:
    """The same for each prefix but the empty one: k numbers. Nothing is longer than the whole draft."""
    own = weights(p, q, draft)
    inner = [chance(own[j], p[j], q[j]) for j in range(1, len(draft))]
    return [*inner, own[-1]] if draft else []


def level_chances(p: Sequence[Law], q: Sequence[Law], draft: Sequence[int]) -> list[float]:
    """Of each level: the probability that it is kept, once those before it are. k numbers.

    The coins are integrated out, and from the second level on the drafted token too: that a prefix is kept speaks for
    the token behind it, so at the token that was drawn the probability would be another. A prefix is kept with its
    weight, and with the next token with what min(weight p, q) leaves of it.
    """
    own = weights(p, q, draft)
    inner = [
        float(np.minimum(own[j] * p[j], q[j]).sum()) / own[j] if own[j] else 0.0 for j in range(1, len(draft))
    ]
    return [own[1], *inner] if draft else []


def last_token(p: Sequence[Law], q: Sequence[Law], draft: Sequence[int], accepted: int) -> Law:
    """The law of the token behind the prefix that is kept."""
    if accepted == len(draft):
        return p[accepted]
    return residual(weights(p, q, draft)[accepted] * p[accepted], q[accepted])


def verify_block(
    p: Sequence[Law], q: Sequence[Law], draft: Sequence[int], accept: Sequence[float], sample: Sequence[float]
) -> tuple[int, int]:
    """One round with its random numbers given, as `engine.verify.law.verify_chain`; all of `accept` are looked at."""
    kept = [j + 1 for j, own in enumerate(chances(p, q, draft)) if accept[j] < own]
    accepted = max(kept, default=0)
    return accepted, draw(last_token(p, q, draft, accepted), sample[accepted])


def block_law(p_of: TreeOfLaws, q_of: TreeOfLaws, vocabulary: int) -> dict[Outcome, float]:
    """Exact law of the tokens that one round commits, by summing over all drafts and all outcomes.

    A draft goes on while q_of has a law for what follows, so its length may depend on its tokens.
    """
    law: dict[Outcome, float] = {}

    def finish(draft: Outcome, mass: float) -> None:
        p, q = ([of[draft[:j]] for j in range(len(draft) + more)] for of, more in ((p_of, 1), (q_of, 0)))
        for accepted, own in reversed(list(enumerate([1.0, *chances(p, q, draft)]))):
            for token, share in enumerate(last_token(p, q, draft, accepted)):
                outcome = (*draft[:accepted], token)
                law[outcome] = law.get(outcome, 0.0) + mass * own * share
            mass *= 1 - own

    def go_on(draft: Outcome, mass: float) -> None:
        if draft not in q_of:
            finish(draft, mass)
            return
        for token in range(vocabulary):
            go_on((*draft, token), mass * float(q_of[draft][token]))

    go_on((), 1.0)
    return law
