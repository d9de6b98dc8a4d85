"""A daemon without an engine of its own, `engine.backend = "none"`: it looks at those of others."""

from typing import Final

from specd.config.schema import Config
from specd.flights import Refusal

NO_ENGINE: Final = Refusal(
    'nothing is served here: engine.backend is "none", and this daemon only observes the engines under [[observe]];'
    " ask one of those",
    "no_engine",
)


def engineless(config: Config) -> bool:
    """Whether it is one."""
    return config.engine.backend == "none"
