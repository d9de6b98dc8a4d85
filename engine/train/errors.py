"""What can go wrong that the user can mend."""


class TrainError(ValueError):
    """The message is a sentence that says what is wrong and what to do instead."""
