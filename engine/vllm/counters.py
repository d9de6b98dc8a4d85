"""A counter that vLLM's own metrics lack, in vLLM's `/metrics`, by the entry point `vllm.stat_logger_plugins`.

vLLM counts accepted tokens by position of the draft. How many were drafted there it counts as well and does not export:
without it, a rate by position falls whenever drafts become shorter, though they are as good as before.
"""

from functools import cache
from typing import Any, Final

import prometheus_client
from vllm.v1.metrics.loggers import StatLoggerBase

NAME: Final = "specd:spec_decode_num_draft_tokens_per_pos"


class DraftedPerPosition(StatLoggerBase):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Of one engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._labels = (str(vllm_config.model_config.served_model_name), str(engine_index))

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,  # noqa: ARG002
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Once a step, or seldomer."""
        drafted = getattr(scheduler_stats, "spec_decoding_stats", None)
        if drafted is None:
            return
        for position, count in enumerate(drafted.num_draft_tokens_per_pos):
            if count:
                _counter().labels(*self._labels, str(position)).inc(count)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


@cache
def _counter() -> prometheus_client.Counter:
    """One for all engines of the process: a registry takes each name once."""
    words = "Draft tokens by position of the draft: the denominator of accepted tokens by position."
    return prometheus_client.Counter(NAME, words, ["model_name", "engine", "position"])
