"""What is sent to the admin listener."""

from typing import Annotated, Literal

import msgspec

from policies.drift import Stratum


class ReloadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reload."""

    partial: bool = False
    """Keys that need a restart wait for it, and the others are taken over."""


class TargetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a change of the target asks for."""

    path: str = ""
    """Of another target, named as `model.target.path` is."""
    weights: str = ""
    """A safetensors file with tensors for the target that is served."""
    revision: str | None = None


class DraftBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a change of the draft asks for."""

    head: Annotated[str, msgspec.Meta(min_length=1)]
    revision: str | None = None


class DriftBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose acceptance; what is left out may be any."""

    traffic_class: str | None = msgspec.field(default=None, name="class")
    temperature: Literal["greedy", "low", "medium", "high"] | None = None
    proposer: str | None = None

    def means(self, stratum: Stratum) -> bool:
        """Whether it is one of them."""
        return (
            self.traffic_class in {None, stratum.traffic_class}
            and self.temperature in {None, stratum.temperature}
            and self.proposer in {None, stratum.proposer}
        )
