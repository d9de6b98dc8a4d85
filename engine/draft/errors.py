"""What a draft is refused by."""


class DraftSettingsError(ValueError):
    """The draft settings do not fit the model; the message says how."""
