"""`[model.target]`: the model whose text is served, and how it is replaced while the daemon runs."""

from typing import Literal

from engine.processor import quick_format
from specd.config.section import Section, drain, hot, restart

NumberFormat = Literal["bfloat16", "float32", "float16"]


class UpdateSection(Section):
    """How the target is replaced while the daemon runs: docs/updates.md."""

    in_flight: Literal["finish", "rerun"] = hot(
        "finish",
        "requests in the engine at an update end on the revision that they began with, or begin anew on the next one; "
        "a stream that has begun always ends on its own",
    )
    room: Literal["drain", "beside"] = hot(
        "drain",
        "where memory does not hold both engines: new requests wait while those that run end and the new engine takes "
        "the place of the old one, or the update is refused",
    )
    watch_seconds: float = hot(
        0.0,
        "how often to look whether what model.target.path names has become another model, which is then served; "
        "name a symbolic link, and lead it elsewhere. 0: never",
        ge=0,
    )
    keep_seconds: float = hot(
        600.0,
        "how long the engine of the previous target is kept for a rollback within seconds; 0 ends it once its requests "
        "have ended",
        ge=0,
    )


class TargetSection(Section):
    """The model whose text is served."""

    path: str = drain("demo", '"demo", a local Hugging Face directory, a GGUF file, or a hub name')
    name: str = restart("", "name in /v1/models; empty takes the last part of the path")
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = drain(
        "auto",
        "number format of the weights; auto is bfloat16, and float32 on a CPU that has no instructions for bfloat16, "
        "where that is many times faster and takes twice the memory",
    )
    quantization: Literal["none", "int8", "fp8"] = drain(
        "none",
        "of the linears' weights, at the start; the quantised model is then the target. fp8 needs cuda",
    )
    revision: str = drain("", "revision in reports and metrics; empty takes a fingerprint of the weights")
    update: UpdateSection = UpdateSection()

    def number_format(self, device: str) -> NumberFormat:
        """That of the weights on this kind of device."""
        return self.auto_format(device) if self.dtype == "auto" else self.dtype

    def auto_format(self, device: str) -> NumberFormat:
        """What auto comes to there. Quantised linears are made for bfloat16."""
        return quick_format() if device == "cpu" and self.quantization == "none" else "bfloat16"

    def same(self, other: "TargetSection") -> bool:
        """Whether both ask for the same weights under the same name."""
        return self.like(other) and (self.path, self.revision) == (other.path, other.revision)

    def like(self, other: "TargetSection") -> bool:
        """Whether weights of the same sizes would cost the same to read."""
        return (self.dtype, self.quantization) == (other.dtype, other.quantization)
