"""The law of one round, in float64 and in the order of the papers. This file is the specification:
every fast path is tested against it, and it is written to be read, not to be run on large vocabularies.

p          the target's distribution at a position, after its logit processors
q          the draft's distribution there, after the same processors; a certain draft (prompt lookup) is one-hot
accepted   drafted tokens kept; the first one that is not kept ends the round
recovered  the token that replaces a rejected one, drawn from the residual max(p - q, 0)
bonus      the token drawn from p after a draft that was accepted whole

Sources: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", ICML 2023, and
Chen et al., "Accelerating large language model decoding with speculative sampling", 2023.
"""

from collections.abc import Collection, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from engine.api import SamplingParams

Law = NDArray[np.float64]  # [V], sums to 1
Outcome = tuple[int, ...]  # the tokens that one round commits


def edited(
    logits: NDArray[np.float64],
    sampling: SamplingParams,
    prompt: Sequence[int],
    text: Sequence[int],
    *,
    end_tokens: Collection[int] = (),
    grammar: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """A row of logits [V] as its request wants it, before the cuts of `processed`.

    text: all tokens generated before the row, drafted ones included; end_tokens: by which the model ends a text;
    grammar: [V], what it allows here. Repetition counts prompt and text, presence and frequency the text alone. A
    minimum length gives way where only an end is left. A row of nothing but -inf stands for no law.
    """
    row = np.array(logits, dtype=np.float64)
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    if sampling.allowed_tokens is not None:
        row = np.where(np.isin(np.arange(len(row)), sampling.allowed_tokens), row, -np.inf)
    row[list(sampling.banned_tokens)] = -np.inf
    if grammar is not None:
        row = np.where(grammar, row, -np.inf)
    if len(text) < sampling.min_tokens:
        going_on = row.copy()
        going_on[[*end_tokens, *sampling.stop_tokens]] = -np.inf
        row = going_on if going_on.max() > -np.inf else row
    for token in {*prompt, *text}:
        factor = sampling.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(text):
        row[token] -= sampling.presence_penalty + sampling.frequency_penalty * list(text).count(token)
    return row


def processed(
    logits: NDArray[np.float64], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Law:
    """Distribution that a row of logits [V] stands for: temperature, then min-p, then top-k, then top-p.

    Temperature 0 is the limit: all mass on the argmax, the lowest id among equals. Tokens that tie with the last
    one kept are kept too, so the result does not depend on the order of a sort.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        return one_hot(int(np.argmax(logits)), len(logits))
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the maximum to -inf, which is right
        scaled = (logits - logits.max()) / temperature
    if min_p > 0:
        scaled = np.where(scaled >= np.log(min_p), scaled, -np.inf)
    if 0 < top_k < len(scaled):
        scaled = np.where(scaled >= np.sort(scaled)[-top_k], scaled, -np.inf)
    p: Law = np.exp(scaled)
    p /= p.sum()
    if top_p < 1:
        falling = np.sort(p)[::-1]
        needed = int(np.searchsorted(np.cumsum(falling), top_p))
        p = np.where(p >= falling[min(needed, len(p) - 1)], p, 0.0)
        p /= p.sum()
    return p


def one_hot(token: int, size: int) -> Law:
    """All mass on one token."""
    law = np.zeros(size)
    law[token] = 1.0
    return law


def acceptance(p: Law, q: Law, token: int) -> float:
    """Probability that a drafted token is kept: min(1, p/q). A token the draft could not have drawn is rejected."""
    return 0.0 if q[token] == 0 else min(1.0, float(p[token] / q[token]))


def residual(p: Law, q: Law) -> Law:
    """Distribution of the recovered token after a rejection."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    # p = q to the last bit: a rejection has probability zero, and any law of the recovered token is right.
    return p if total == 0 else rest / total


def draw(law: Law, uniform: float) -> int:
    """The token whose stretch of the cumulative law holds `uniform` in [0, 1)."""
    cumulative = np.cumsum(law)
    below_total = np.nextafter(cumulative[-1], 0.0)  # a uniform just below 1 must not round up to the whole
    return int(np.searchsorted(cumulative, min(uniform * cumulative[-1], below_total), side="right"))


def verify_chain(
    p: Sequence[Law], q: Sequence[Law], draft: Sequence[int], accept: Sequence[float], sample: Sequence[float]
) -> tuple[int, int]:
    """One round of rejection sampling with its random numbers given.

    p: k+1 laws, q: k laws, draft: k tokens, accept: k uniforms, sample: k+1 uniforms, one for each position at which
    the round may end. Returns (accepted, the recovered or bonus token).
    """
    for j, token in enumerate(draft):
        if accept[j] >= acceptance(p[j], q[j], token):
            return j, draw(residual(p[j], q[j]), sample[j])
    return len(draft), draw(p[len(draft)], sample[len(draft)])


def verify_certain(p: Sequence[Law], draft: Sequence[int], sample: Sequence[float]) -> tuple[int, int]:
    """One round of a draft without a law of its own (q is one-hot), with its random numbers given.

    The target draws its own token at each position, and the draft is kept while it is that token. This is rejection
    sampling with one coin for both questions: a draft x is kept with probability p(x), and a token other than x comes
    with its own p. What is drawn does not depend on the draft, so neither does the text of a seed.
    """
    for j, token in enumerate(draft):
        own = draw(p[j], sample[j])
        if own != token:
            return j, own
    return len(draft), draw(p[len(draft)], sample[len(draft)])


def round_law(p_of: "TreeOfLaws", q_of: "TreeOfLaws", k: int, vocabulary: int) -> dict[Outcome, float]:
    """Exact law of the tokens that one round commits, by summing over all drafts and all outcomes.

    p_of and q_of map a prefix (the tokens drafted so far in this round) to the law of the next token.
    """
    law: dict[Outcome, float] = {}

    def add(outcome: Outcome, mass: float) -> None:
        law[outcome] = law.get(outcome, 0.0) + mass

    for draft in product(range(vocabulary), repeat=k):
        mass = 1.0
        for j, token in enumerate(draft):
            mass *= q_of[draft[:j]][token]
        for j, token in enumerate(draft):
            p, q = p_of[draft[:j]], q_of[draft[:j]]
            kept = acceptance(p, q, token)
            for recovered, share in enumerate(residual(p, q)):
                add((*draft[:j], recovered), mass * (1 - kept) * share)
            mass *= kept
        for bonus, share in enumerate(p_of[draft]):
            add((*draft, bonus), mass * share)
    return law


TreeOfLaws = dict[Outcome, Law]
