"""What crosses the wire between daemon and engine. Imports no torch, so that the control plane starts at once.

Daemon to engine: Launch (first, once), then Submit, Cancel, Configure, Move, Shutdown in any order.
Engine to daemon: Loading*, then Ready or Refused; then StepReport per step, Idle while there is none to take.
"""

from typing import Any, Literal

import msgspec

from policies.base import GRAMMAR, LoadState
from policies.cost import StepCosts
from policies.cost_error import CostError
from policies.settings import PolicySettings

FinishReason = Literal["stop", "length", "cancelled", "error"]
DraftKind = Literal["none", "ngram", "suffix", "layer-skip", "model", "eagle", "medusa", "mtp"]
Sharing = Literal["request", "tenant", "all"]
"""Whose generated texts suffix decoding looks into, beside a request's own."""
Quantization = Literal["none", "int8", "fp8"]
Verification = Literal["token", "block"]
"""How chains that were drawn from a law are verified: each token by its own ratio of probabilities, or the draft as a
whole, which keeps at least as much of it on average. Certain drafts and trees are not asked."""


class Grammar(msgspec.Struct, frozen=True):
    """What the text must conform to."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark"]
    text: str = ""
    """The schema as JSON, the regular expression, the choices as a JSON list, or the Lark grammar; empty for any
    JSON object."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn from the target's rows.

    A row is edited first (bias, allowed and banned tokens, grammar, minimum length, penalties, in this order) and cut
    afterwards (temperature, min-p, top-k, top-p, in this order). `engine.verify.law` says how, exactly.
    """

    max_tokens: int
    min_tokens: int = 0
    """No end of sequence and no stop token before so many tokens were generated, unless nothing else is left to draw.
    A stop string ends the text only if a later token completes it."""
    temperature: float = 1.0
    """0 is greedy."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the likeliest one's probability, in [0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of prompt and text less likely: positive logits are divided by it, others multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the text has; the prompt does not count."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit as often as the text has it; the prompt does not count."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens; -inf bans one."""
    allowed_tokens: tuple[int, ...] | None = None
    """Only these can be drawn; None allows all."""
    banned_tokens: tuple[int, ...] = ()
    """These cannot be drawn."""
    seed: int = 0
    """Draws are keyed by (seed, position) and so do not depend on who shares the batch."""
    seeded: bool = True
    """Whether somebody has asked for this seed. If not, an engine may draw by another."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; the text is cut before them, or behind them with `include_stop`."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end the text as the model's own end-of-sequence tokens do, `ignore_eos` or not. Such a token counts
    as generated; its text is left out, unless `include_stop`."""
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """So many of the likeliest tokens' logprobs with each generated token's own; None for none at all."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; such a request is not speculated for."""
    grammar: Grammar | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    n: int = 1
    """So many texts, each with a seed of its own; the first one's is the seed given."""
    continues: bool = True
    """Whether the text goes on from the prompt; that of an encoder-decoder model is read on its own."""
    speculate: bool = True
    k: int | None = None
    """Draft length asked for by the request; None leaves it to the policy. Caps by load still hold."""
    k_max: int | None = None
    """Levels that no draft for it is to have more of."""
    proposer: DraftKind | None = None
    """Nobody else drafts for it; None leaves it to the policy."""
    traffic_class: str = "default"
    tenant: str = "default"


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation did for one finished request."""

    rounds: int
    drafted: int
    examined: list[int]
    """By draft position: rounds in which position j+1 was examined."""
    accepted: list[int]
    """By draft position: rounds in which position j+1 was accepted."""
    k_histogram: dict[int, int]
    """Rounds by the k that was chosen for them."""
    proposers: dict[str, int]
    """Rounds with a draft, by who drafted."""
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0
    """Of the prompt: tokens whose keys and values were there already, in the prefix cache or of another text of the
    same request."""
    not_speculated: str | None = None
    """Why the request was never speculated for, where it is the request's own doing."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities at one position.

    Of generated tokens: of the target's row as edited, at the request's temperature (at 1 for greedy requests), before
    any cut. Of prompt tokens: of the model's own row. Among equals the lower id comes first.
    """

    token: int
    logprob: float
    rank: int
    """1 for the likeliest."""
    top: list[tuple[int, float]]
    """(token, logprob) of the likeliest that can be drawn, falling."""


class Foreign(msgspec.Struct, frozen=True):
    """Of a request that reached the engine past the daemon, which hears of it at its end."""

    traffic_class: str
    tenant: str
    temperature: float


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did for one text of a request. The last output of a text carries `finish` and `report`."""

    id: str
    index: int = 0
    """Which of the request's n texts."""
    tokens: list[int]
    """Newly committed tokens; with a stop string, up to and including the token that completes it."""
    logprobs: list[TokenLogprob] | None = None
    """One for each of `tokens`, if asked for."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """With the first output of text 0: one for each token of the prompt, None for the first, which follows nothing."""
    finish: FinishReason | None = None
    error: str | None = None
    """With finish = "error": a sentence for the user."""
    refused: bool = False
    """With finish = "error": the request itself cannot run here; sent again, it would fail again."""
    report: RequestReport | None = None
    foreign: Foreign | None = None


class Round(msgspec.Struct, frozen=True, array_like=True):
    """One request's draft and verification in one step, with the decision behind it."""

    request: str
    traffic_class: str
    proposer: str
    """Who was asked for a draft; "none" when k = 0."""
    k: int
    """What the policy chose: levels of the draft."""
    drafted: int
    """Tokens that the proposer put forward: at most k, but for a tree."""
    examined: int
    accepted: int
    reason: str
    """A `policies.base.Reason`."""
    text: str
    goodput: float = 0.0
    """Tokens a second that the policy expected of the step; 0 where it did not say."""
    alternatives: tuple[tuple[str, int, float], ...] = ()
    """(proposer, k, goodput had it been chosen) of the two best others, for a few of a step's rounds in turn."""
    chances: tuple[float, ...] = ()
    """By examined position: with which probability it was to be accepted; see `policies.base.Observation`."""

    @property
    def is_evidence(self) -> bool:
        """Whether it says anything of the draft's quality: a forced token does not, nor does one not examined."""
        return self.examined > 0 and self.proposer != GRAMMAR


class KVUsage(msgspec.Struct, frozen=True):
    """Blocks of the KV pool by state."""

    free: int
    used: int
    cached: int = 0
    """Nobody holds them, but they keep a prefix that a request may come for; taken when no block is free."""


class PhaseSeconds(msgspec.Struct, frozen=True):
    """Where one step spent its time."""

    schedule: float
    draft: float
    verify: float
    commit: float


class StepReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One engine step: its outputs and what the daemon measures and explains it by."""

    step: int
    phases: PhaseSeconds
    rows: int
    """Rows of the target's forward, prefill included."""
    prefill_rows: int
    padded_rows: int = 0
    """Rows that nobody asked for, which filled the step up to a size that was captured: a step costs what
    `rows + padded_rows` cost."""
    running: int
    waiting: int
    committed: int
    """Tokens committed by decode rounds in this step."""
    kv: KVUsage
    load_state: LoadState
    rounds: list[Round]
    outputs: list[Output]
    preempted: int = 0
    """Running texts that gave up their blocks in this step, to be computed anew."""
    cost_errors: tuple[CostError, ...] = ()
    """How well the policy foresees what steps take; told now and then."""
    failed: str | None = None
    """Why the step was given up half-way, if it was: everything that ran then has ended with this."""


class Idle(msgspec.Struct, frozen=True, tag=True):
    """The engine has nothing to do and is well. Sent about twice a second."""

    step: int
    kv: KVUsage
    costs: StepCosts | None = None
    """What the policy reckons a step to cost."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Progress of the start, for people."""

    message: str


class Room(msgspec.Struct, frozen=True):
    """Memory for steps, as it was at the start of the engine."""

    rows: int
    """Verified in the largest step that was planned for."""
    row_bytes: int
    """That one more takes."""
    spare_bytes: int
    """That are left beside all that was planned."""


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The engine accepts requests."""

    model_path: str
    model_type: str
    dtype: str
    quantization: str
    """ "none" for plain weights."""
    max_context: int
    """Tokens of prompt and output together."""
    encodes: bool = False
    """Whether an encoder reads the prompts: then texts do not go on from them, and no prefix is kept."""
    kv_blocks: int
    block_size: int
    proposers: tuple[str, ...]
    """Names of those who may draft, in the order in which they were configured."""
    memory: dict[str, int]
    """Bytes by use: "weights", "draft_weights", "kv", "draft_kv", "suffix", "verify"."""
    room: Room | None = None
    """For larger steps than were planned for; None where nobody knows."""
    foreign: bool = False
    """Requests reach it past the daemon; see `Foreign`."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot serve what Launch asks for: the user's mistake, not a crash."""

    message: str
    lacks_memory: bool = False
    """With more memory it could."""


class DraftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who drafts. All but the kinds, the paths and `suffix_bytes` can change while running."""

    kinds: tuple[DraftKind, ...] = ("ngram",)
    """The policy chooses among these, by request and by round."""
    model_path: str = ""
    """Kind "model": a local Hugging Face directory."""
    vocabulary: Literal["same", "mapped"] = "same"
    """Kind "model": whether its tokenizer must be the target's, or may share tokens with it."""
    head_path: str = ""
    """Kinds "eagle" and "medusa": a local directory with a head."""
    ngram_min: int = 2
    """Shortest match of the text's end that prompt lookup trusts, in tokens."""
    ngram_max: int = 5
    """Longest match tried, in tokens; longest first, then most recent."""
    match_factor: float = 2.0
    """Kinds "ngram" and "suffix": tokens drafted for each token of the match that they follow from, at most."""
    suffix_bytes: int = 16 << 20
    """Kind "suffix": memory for what was generated before and beside a request; the oldest gives way."""
    suffix_across: Sharing = "tenant"
    skip_layers: tuple[int, ...] | None = None
    """Layers that layer skip leaves out; None skips every second layer of the middle half."""


Share = Literal["alone", "beside", "behind"]
"""Of the machine: all that it was given; half of its threads, since another engine computes as well; one thread at low
priority, if that can be taken back, since somebody else serves."""


class Launch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All the engine needs to start."""

    model_path: str
    """A local Hugging Face directory."""
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    quantization: Quantization = "none"
    """Of the linears' weights, done at the start; the quantised model is then the target."""
    device: Literal["cpu", "cuda"] = "cpu"
    cuda_graphs: bool = True
    """On CUDA: capture small steps at the start and replay them."""
    threads: int = 0
    """Compute threads; 0 takes all cores."""
    max_running: int = 48
    """Requests that decode or prefill together."""
    max_batch_tokens: int = 256
    """Rows of prompts and decodes in one forward, drafts not counted; longer prompts are prefilled in chunks."""
    rows_beside_decodes: int = 32
    """Rows of prompts in a step in which others decode, so that these wait for about a step more and not for a long
    prompt; fewer behind a long context. 0 sets no limit."""
    max_context: int = 0
    """0 takes the model's own limit."""
    kv_bytes: int = 1 << 30
    block_size: int = 16
    prefix_cache: bool = True
    """Keep the keys and values of finished texts, for prompts that begin alike."""
    cache_dir: str = ""
    """Where native kernels are compiled to, once; empty does without them."""
    draft: DraftSettings = DraftSettings()
    policy: PolicySettings = PolicySettings()
    verification: Verification = "block"
    costs: StepCosts | None = None
    """What an earlier calibration of this engine found: reckoned with from the start on, and nothing is measured."""
    share: Share = "alone"
    """Of the machine, until `Move`."""
    vllm_options: dict[str, Any] = {}
    """For the engine with vLLM: its own options, beside those that follow from the rest."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue a request."""

    request: Request


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a request early; its last output says "cancelled". Unknown ids are ignored."""

    id: str


class Configure(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Replace the hot settings before the next step."""

    policy: PolicySettings
    draft: DraftSettings
    verification: Verification = "block"


class Move(msgspec.Struct, frozen=True, tag=True):
    """Take another share of the machine from the next step on."""

    share: Share


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End now; requests in flight are dropped."""


ToEngine = Launch | Submit | Cancel | Configure | Move | Shutdown
FromEngine = StepReport | Idle | Loading | Ready | Refused
