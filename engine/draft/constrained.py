"""Drafts for a text that follows a grammar."""

from collections.abc import Iterator

from engine.draft.base import NO_DRAFT, Draft
from engine.draft.shape import ROOT
from engine.grammar.state import GrammarState, Standing
from engine.sequence import Sequence as Seq
from policies.base import GRAMMAR, Decision


def settled_draft(sequence: Seq, decision: Decision, proposed: Iterator[Draft]) -> Draft:
    """A text's draft: forced, or the next of those proposed where one was asked for, within its grammar if any."""
    grammar = sequence.grammar
    if decision.option is not None:
        return next(proposed) if grammar is None else fit(next(proposed), grammar)
    if decision.k == 0 or grammar is None:
        return NO_DRAFT
    return Draft(grammar.forced(decision.k), proposer=GRAMMAR)


def fit(draft: Draft, grammar: GrammarState) -> Draft:
    """Cut each branch of a draft where the grammar does not let it go on.

    A certain draft loses the token that is not allowed or that ends the text, since the row before says as much. A
    token drawn from a law stays, and what follows it goes: whether a token is verified may depend on those before it,
    but were it to depend on the token itself, the law of the text would no longer be the target's.
    """
    open_ends, kept = {ROOT}, []
    for node, parent in enumerate(draft.shape):
        if parent not in open_ends:
            continue
        *way, token = draft.way(node + 1)
        if grammar.allows(way, token) and grammar.spot([*way, token]).standing is Standing.OPEN:
            open_ends.add(node)
        elif draft.probs is None:
            continue
        kept.append(node)
    return draft if len(kept) == len(draft.tokens) else draft.only(kept)
