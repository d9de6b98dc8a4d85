"""What is wrong with a grammar, for its user."""


class GrammarError(ValueError):
    """The grammar cannot be followed; the message is a sentence that says why."""
