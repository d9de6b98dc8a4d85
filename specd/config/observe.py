"""`[[observe]]`: engines of others that are looked at, and cannot be steered. docs/observe.md."""

from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import field_validator

from specd.config.files import SecretFile
from specd.config.section import Section, hot

ObservedKind = Literal["auto", "vllm", "llamacpp", "sglang", "tgi", "specd", "transformers"]
OBSERVED_KINDS = get_args(ObservedKind)


class ObserveSection(Section):
    """An engine that is looked at from outside: docs/observe.md."""

    name: str = hot(
        ..., "name in metrics, alerts and logs", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=63
    )
    url: str = hot(..., "its root, as in http://host:8000", pattern=r"^https?://.+$")
    kind: ObservedKind = hot("auto", "which engine it is; auto finds out by its metrics")
    metrics_url: str = hot(
        "", "where its metrics are; empty takes /metrics below url", pattern=r"^(https?://.*)?$"
    )
    model: str = hot("", "the model that is asked and told of; empty takes the first that it lists")
    key_file: SecretFile | None = hot(None, "file with the bearer key that it asks for")
    private_addresses: bool = hot(True, "whether the URLs may lead to loopback or a private network")
    every_seconds: float = hot(10.0, "between two looks", ge=0.1)
    timeout_seconds: float = hot(5.0, "a look that takes longer has failed", gt=0)
    down_seconds: float = hot(60.0, "after so long without a look that succeeds there is an alert", ge=0)
    canary_seconds: float = hot(
        3600.0,
        "between two replays of the canary's prompts; 0 asks when it was restarted or swapped alone. They are traffic "
        "there, one at a time",
        ge=0,
    )
    canary_patience_seconds: float = hot(
        60.0, "that a replay waits, in all, for moments in which nobody else is served", ge=0
    )
    learn_reports: int = hot(50, "reports before anything is said of its acceptance", ge=10)
    report_requests: int = hot(8, "requests that end within a report, at least", ge=1)
    report_drafts: int = hot(256, "drafts within a report, at least", ge=16)
    severity: str = hot("warning", "label of its alerts")

    @field_validator("url", "metrics_url")
    @classmethod
    def _root(cls, url: str) -> str:
        """Without what all endpoints begin with."""
        parts = urlsplit(url)
        if url and (not parts.hostname or parts.port == 0):
            raise ValueError("it names no host and port")
        if parts.query or parts.fragment:
            raise ValueError("leave ? and # and what follows them out")
        return url.rstrip("/").removesuffix("/v1")

    @property
    def metrics(self) -> str:
        """Where they are."""
        return self.metrics_url or f"{self.url}/metrics"


def refused_when_set(new: tuple[ObserveSection, ...], old: tuple[ObserveSection, ...]) -> tuple[str, ...]:
    """Why these may not be put in force by whoever can set keys of the running daemon: see `specd.config.alerts`."""
    added = [one for one in new if one not in old]
    private = (
        f"observe: {one.name} may lead to private addresses: set private_addresses = false, or write it into the config"
        " file"
        for one in added
        if one.private_addresses
    )
    files = (
        f"observe: {one.name} names a file of this host: leave key_file out, or write it into the config file"
        for one in added
        if one.key_file
    )
    return (*private, *files)
