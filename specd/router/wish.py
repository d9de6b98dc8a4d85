"""What a request says of itself that matters to the router. The body goes on as it came, whatever it is."""

from typing import Literal

import msgspec


class _Extension(msgspec.Struct):
    speculate: Literal["auto", "off"] = "auto"
    k: int | None = None


class _Body(msgspec.Struct):
    specd: _Extension | None = None


def declines_drafts(body: bytes) -> bool:
    """Whether it asks for none by the daemon's own extension. What cannot be read is for the instance to refuse."""
    try:
        found = msgspec.json.decode(body, type=_Body).specd
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return found is not None and (found.speculate == "off" or found.k == 0)
