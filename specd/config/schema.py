"""Every key of the config, its default, what it means, and what it takes to change it."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from engine.api import DraftKind, Sharing
from engine.skipset import SkipSet, read_skip_set
from specd.config.alerts import AlertsSection, ReceiverSection
from specd.config.canary import CanarySection
from specd.config.drift import DriftSection
from specd.config.files import SecretFile
from specd.config.limits import LimitSection
from specd.config.mqtt import MqttSection
from specd.config.observe import ObserveSection
from specd.config.policy import PolicySection
from specd.config.router import RouterSection
from specd.config.section import Section, drain, hot, restart
from specd.config.store import StoreSection
from specd.config.target import TargetSection
from specd.config.telemetry import TelemetrySection
from specd.config.tracing import TracingSection
from specd.config.vllm import VllmSection, vllm_fault

Port = Annotated[int, Field(ge=0, le=65535)]


class ServerSection(Section):
    """The listener for inference."""

    listen: str = restart("127.0.0.1:8000", "host:port for inference; port 0 takes a free one")
    drain_seconds: float = hot(30.0, "how long open requests may go on after SIGTERM", ge=0)
    max_queue: int = hot(256, "requests that may wait; one more gets 429", ge=0)
    max_body_bytes: int = hot(4 << 20, "a larger request body gets 413", ge=1024)
    max_header_bytes: int = hot(64 << 10, "request line and headers; longer ones get 431", ge=1024)
    slow_client_seconds: float = hot(
        60.0,
        "a client that takes longer to send its request, or to read on once the buffer is full, is cut off",
        gt=0,
    )
    api_keys_file: SecretFile | None = restart(
        None,
        "bearer keys, one a line, plain or hashed (`specd keys new`); read again whenever it changes. Without it no "
        "key is asked for, and only this machine may be listened to",
    )
    allowed_hosts: tuple[str, ...] = hot(
        (),
        "Host headers that are taken beside those of this machine, such as a proxy's name: on the admin listener, and "
        "for inference where no keys are asked for",
    )
    default_max_tokens: int = hot(1024, "max_tokens of a request that names none", ge=1)
    max_prompt_tokens: int | None = hot(None, "a longer prompt gets 400; unset: what the context holds", ge=1)
    request_seconds: float | None = hot(
        None,
        "a request that is not answered whole by then is ended; one may ask for less by specd.timeout. Unset: no limit",
        gt=0,
    )
    max_unread: int = hot(
        4096, "steps' outputs that may wait for a client to read them; a stream that has more is ended", ge=16
    )
    limits: tuple[LimitSection, ...] = hot((), "what tenants and keys may take of the server")

    @model_validator(mode="after")
    def _one_limit_each(self) -> Self:
        named = [(limit.tenant, limit.key) for limit in self.limits]
        if len(set(named)) < len(named):
            raise ValueError("limits name a tenant or a key twice: make it one entry")
        return self


class AdminSection(Section):
    """The listener for metrics and administration."""

    listen: str = restart("127.0.0.1:8001", "host:port, or unix:/path/to/socket")
    token_file: SecretFile | None = restart(
        None,
        "bearer tokens for /admin, as in server.api_keys_file; without it loopback is trusted",
    )


class ReloadSection(Section):
    """How the config is taken over while the daemon runs: docs/operating.md."""

    watch: bool = hot(True, "reload when a file of the config was changed, added or removed")


class EngineSection(Section):
    """The engine process."""

    backend: Literal["specd", "vllm", "vllm-serve", "none"] = restart(
        "specd",
        "specd's own engine; or vLLM's, for what one machine cannot hold; or a vLLM server that others run, whose "
        "drafts alone are looked after: docs/vllm.md; or none: nothing is served here, engines are only observed: "
        "docs/observe.md",
    )
    device: Literal["cpu", "cuda"] = restart("cpu", "where the model runs")
    cuda_graphs: bool = restart(True, "on CUDA: capture small steps at the start and replay them")
    threads: int = restart(0, "compute threads; 0 takes all cores", ge=0)
    max_running: int = restart(48, "requests that decode or prefill together", ge=1, le=1024)
    max_batch_tokens: int = restart(
        256,
        "rows of prompts and decodes in one forward, drafts not counted; longer prompts go in chunks",
        ge=16,
    )
    rows_beside_decodes: int = restart(
        32,
        "rows of prompts in a step in which others decode: the fewer, the less a long prompt makes these wait, and the "
        "longer it waits itself; 0 sets no limit",
        ge=0,
    )
    max_context: int = restart(0, "tokens of prompt and output together; 0 takes the model's limit", ge=0)
    kv_mib: int = restart(1024, "memory for keys and values, MiB", ge=1)
    block_size: int = restart(16, "tokens in a block of the KV pool", ge=1, le=256)
    prefix_cache: bool = restart(
        True,
        "keep keys and values of finished texts, for prompts that begin alike, as long as their blocks are spare",
    )
    verification: Literal["token", "block"] = hot(
        "block",
        "how drafts drawn from a law (layer-skip and model at a temperature above 0) are verified: by token, or as a "
        "block, which keeps at least as much",
    )
    hang_seconds: float = hot(
        60.0, "an engine that neither steps nor says it is idle for this long is restarted", gt=0
    )
    start_seconds: float = hot(
        600.0, "longest time for the engine to load its model; none with vllm-serve", gt=0
    )
    vllm: VllmSection = VllmSection()


class DraftSection(Section):
    """Who guesses ahead."""

    kind: DraftKind | Literal["auto"] | tuple[DraftKind, ...] = restart(
        "auto",
        "the proposer, or a list among which the policy chooses by request and by round; auto takes ngram, and whoever "
        "drafts with the head that there is for the target",
    )
    model: str = restart("", 'kind "model": a smaller model, named as model.target.path is')
    vocabulary: Literal["same", "mapped"] = restart(
        "same",
        "kind model: its tokenizer is the target's, or another one: then it drafts with the tokens that both have",
    )
    head: str = drain(
        "",
        "kinds eagle and medusa: a directory with a head; empty takes one that was trained here for the target, else "
        "the package's",
    )
    ngram_min: int = hot(2, "shortest match that prompt lookup trusts, tokens", ge=1, le=16)
    ngram_max: int = hot(5, "longest match tried, tokens", ge=1, le=16)
    match_factor: float = hot(
        2.0, "ngram and suffix draft at most so many tokens for each token of the match behind them", gt=0
    )
    suffix_mib: int = restart(
        16,
        "memory for the generated texts that suffix looks into, about 13,800 tokens a MiB; the oldest give way",
        ge=1,
    )
    suffix_across: Sharing = hot(
        "tenant",
        "whose generated texts suffix looks into, beside the request's own: nobody's (\"request\"), those of requests "
        'with the same user field, all without one being one ("tenant"), or everybody\'s ("all"). What is written '
        "does not depend on it, but how fast does",
    )
    skip_layers: tuple[int, ...] | None = hot(
        None, "layers left out by layer-skip; unset skips every second layer of the middle half"
    )
    skip_file: Path | None = hot(
        None,
        "or the layers that `specd draft train --kind layer-skip` found: the file, or the directory it was written to; "
        "read again at each reload",
    )
    revision: str = drain("", "draft revision in reports; empty derives one from the kind and its settings")
    on_mismatch: Literal["alert", "refuse"] = hot(
        "alert",
        "a head that was trained for another revision of the target, or a draft model with another chat template or "
        "other ends of a text: the pair is served with an alert, or not at all",
    )
    _skip_set: SkipSet | None = PrivateAttr(default=None)

    @property
    def kinds(self) -> tuple[DraftKind, ...]:
        """The proposers that are named, in order; none of "auto"."""
        if self.kind == "auto":
            return ()
        return (self.kind,) if isinstance(self.kind, str) else self.kind

    @model_validator(mode="after")
    def _kinds(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds) or not self.kind:
            raise ValueError(f"kind names {list(self.kinds)}: name at least one, and each once")
        if "none" in self.kinds and len(self.kinds) > 1:
            raise ValueError('kind "none" stands alone: leave it out, or the others')
        if "model" in self.kinds and not self.model:
            raise ValueError('kind "model" needs a smaller model to draft with: name it with model = "…"')
        return self

    @property
    def skipped(self) -> tuple[int, ...] | None:
        """The layers to leave out, wherever they are named."""
        return self.skip_layers if self._skip_set is None else self._skip_set.skip

    @property
    def skip_set(self) -> SkipSet | None:
        """What `skip_file` says, as it was when the config was read."""
        return self._skip_set

    @model_validator(mode="after")
    def _read_skip_file(self) -> Self:
        if self.skip_file is not None:
            if self.skip_layers is not None:
                raise ValueError("skip_layers and skip_file both say which layers to leave out: unset one")
            self._skip_set = read_skip_set(self.skip_file.expanduser())
        return self

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(
                f"ngram_min = {self.ngram_min} is above ngram_max = {self.ngram_max}:"
                " lower one or raise the other"
            )
        return self


class ModelSection(Section):
    """Target and draft."""

    target: TargetSection = TargetSection()
    draft: DraftSection = DraftSection()


class Config(Section):
    """The whole config."""

    server: ServerSection = ServerSection()
    admin: AdminSection = AdminSection()
    reload: ReloadSection = ReloadSection()
    engine: EngineSection = EngineSection()
    model: ModelSection = ModelSection()
    policy: PolicySection = PolicySection()
    canary: CanarySection = CanarySection()
    drift: DriftSection = DriftSection()
    alerts: AlertsSection = AlertsSection()
    mqtt: MqttSection = MqttSection()
    router: RouterSection = RouterSection()
    telemetry: TelemetrySection = TelemetrySection()
    tracing: TracingSection = TracingSection()
    store: StoreSection = StoreSection()
    observe: tuple[ObserveSection, ...] = hot((), "engines of others that are looked at")

    @model_validator(mode="after")
    def _one_name_each(self) -> Self:
        names = [one.name for one in self.observe]
        if len(set(names)) < len(names):
            raise ValueError(f"observe: engines need different names, these are {names}")
        return self

    @model_validator(mode="after")
    def _broker_for_alerts(self) -> Self:
        names = [receiver.name for receiver in self.alerts.receivers if receiver.kind == "mqtt"]
        if names and not self.mqtt.url:
            raise ValueError(f"alerts.receivers: {names[0]} is of kind mqtt: name a broker with mqtt.url")
        return self

    @model_validator(mode="after")
    def _vllm_can(self) -> Self:
        if self.engine.backend != "specd" and (fault := vllm_fault(self)):
            raise ValueError(fault)
        return self

    @property
    def drafting(self) -> DraftSection:
        """`model.draft`, with what "auto" means to the engine: vLLM drafts with one proposer."""
        draft = self.model.draft
        if self.engine.backend != "specd" and draft.kind == "auto":
            return draft.model_copy(update={"kind": "ngram"})
        return draft

    @property
    def alerts_told(self) -> AlertsSection:
        """The alerts section, with the receiver that a broker brings along where none of its kind is configured."""
        receivers = self.alerts.receivers
        if not self.mqtt.url or any("mqtt" in {one.kind, one.name} for one in receivers):
            return self.alerts
        implied = ReceiverSection(name="mqtt", kind="mqtt")
        return self.alerts.model_copy(update={"receivers": (*receivers, implied)})
