"""What can be wrong with a look."""


class ObserveError(Exception):
    """Nothing can be said of the engine now; the message is a clause that says why."""


class RefusedError(ObserveError):
    """It answered that it will not do what was asked of it."""

    def __init__(self, message: str, status: int) -> None:
        """status: of HTTP, 400 to 499."""
        super().__init__(message)
        self.status = status
