"""How an engine process ends that knows why. No torch: the daemon reads it."""

from typing import Final

FINE: Final = 0
REFUSED: Final = 2
NO_MEMORY: Final = 3
DEVICE_FAILED: Final = 4
CORE_GONE: Final = 5

WORDS: Final = {
    NO_MEMORY: "it ran out of memory in a step",
    DEVICE_FAILED: "its device failed",
    CORE_GONE: "the process of vLLM's engine core ended",
}
"""Clauses for people."""
