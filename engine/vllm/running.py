"""A request of vLLM's as our policy knows it. Imports nothing of vLLM.

What its sender asks for comes by `extra_args` (over HTTP `vllm_xargs`), which vLLM hands on as they are: any name, and
any string, number or list. It is read in the midst of a step, where an exception would end vLLM for everybody, so what
makes no sense is as if it were not there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from engine.api import FinishReason, Foreign, Output
from engine.classes import LONGEST, PATTERN
from engine.tally import Tally
from policies.base import Decision, Reason

_UNDECIDED: Final = Decision(0, Reason.NO_OFFER, "its first draft is not made yet")
_MOST: Final = 1 << 10  # tokens that anybody may ask for: more than any draft has
_OF_NAME: Final = 512  # characters
_class = re.compile(PATTERN)


class Running(Protocol):
    """What is read of a vLLM request. `spec_token_ids`, its draft, is cut."""

    request_id: str
    max_tokens: int
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    spec_token_ids: list[int]
    sampling_params: Any


@dataclass(slots=True)
class Text:
    """What is known of a running request."""

    request: Running
    key: str  # vLLM's id
    name: str  # what others call it
    hosted: bool  # it was sent by our own engine process, which sees to its end
    traffic_class: str
    tenant: str
    speculate: bool
    fixed_k: int | None
    k_max: int | None
    proposer: str | None  # nobody else is to draft for it
    tally: Tally = field(default_factory=Tally)
    run: int = 0  # tokens that lookups have said rightly since they were wrong last
    ahead: Decision = _UNDECIDED  # for the draft that is made in the step that runs

    @classmethod
    def of(cls, request: Running) -> "Text":
        """As its sender wants it."""
        asked: Mapping[str, Any] = getattr(request.sampling_params, "extra_args", None) or {}
        name = _string(asked, "specd_id")
        return cls(
            request=request,
            key=request.request_id,
            name=name or request.request_id,
            hosted=name is not None,
            traffic_class=_traffic_class(asked),
            tenant=_string(asked, "specd_tenant") or "default",
            speculate=asked.get("specd_speculate") != "off",
            fixed_k=_length(asked.get("specd_k")),
            k_max=_length(asked.get("specd_k_max")),
            proposer=_string(asked, "specd_proposer"),
        )

    def ended(self, finish: FinishReason) -> Output:
        """For those who did not send it: that it has ended, and what became of its drafts."""
        temperature = float(getattr(self.request.sampling_params, "temperature", 0.0))
        return Output(
            id=self.name,
            tokens=[],
            finish=finish,
            report=self.tally.report(self.request.num_prompt_tokens, self.request.num_output_tokens),
            foreign=Foreign(self.traffic_class, self.tenant, temperature),
        )


def _string(asked: Mapping[str, Any], key: str) -> str | None:
    found = asked.get(key)
    return found[:_OF_NAME] if isinstance(found, str) and found else None


def _traffic_class(asked: Mapping[str, Any]) -> str:
    found = _string(asked, "specd_class") or ""
    return found if len(found) <= LONGEST and _class.fullmatch(found) else "default"


def _length(asked: object) -> int | None:
    """Floats may be none of the whole numbers, or none at all: NaN and infinities come by JSON too."""
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    return min(max(asked, 0), _MOST) if isinstance(asked, int) else None
