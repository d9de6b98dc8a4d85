"""The record of a training: enough to do it again and to judge it."""

import msgspec

from engine.train.acceptance import Table


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Written beside the head as record.json."""

    command: str
    kind: str
    target: str
    target_fingerprint: str
    """By which the daemon knows whose head this is."""
    seed: int
    prompts: str
    texts: dict[str, int]
    """By class, those trained on."""
    tokens: dict[str, int]
    """Of their answers, by class."""
    seconds: float
    """Of the training itself."""
    rows: int
    """Rows trained on, each epoch's counted again."""
    curve: list[tuple[int, list[float]]]
    """(rows, mean loss by step of the head)."""
    acceptance: Table
    """On held-out prompts, by class: conditional, by position."""
    drafted_from: int
    """Tokens in the draft vocabulary."""
    coverage: float
    """Share of the held-out laws' mass that the draft vocabulary has."""
    note: str = ""

    def text(self) -> str:
        """As JSON, for people too."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"
