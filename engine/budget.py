"""What the engine is going to hold in memory, worked out and compared with what there is before it is allocated.

A refusal with a sentence is better than a process that the kernel kills an hour later: memory that was asked for is
handed out when it is first written.
"""

from dataclasses import asdict, dataclass
from typing import Final

from engine.api import Launch
from engine.available import mib
from engine.draft.occurrences import PLACE_BYTES
from engine.draft.registry import Parts
from engine.model.loader import LoadedModel
from policies.load import most_rows

# Bytes for each of a verify row's logits beside the logits and their edited copy: the draft's law, the row's own, the
# same sorted, and its sums in float32, and the sums that a token is drawn by in float64.
_LAW_BYTES: Final = 4 * 4 + 8
_SAID: Final = 2  # a draft's logits, and their edited copy
_SCORES: Final = 3  # of an encoder: the bias of each position, the scores with it, and their softmax


class CannotServeError(Exception):
    """Settings, model and machine do not fit together; the message says what to change."""


class MemoryShortageError(CannotServeError):
    """They would fit where more memory is free."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes by use."""

    weights: int
    draft_weights: int
    """Of draft models and heads."""
    kv: int
    """Of the target."""
    draft_kv: int
    """Of proposers with a cache of their own, with what they keep of the target's forward."""
    suffix: int
    """Of what suffix decoding looks into: the generated texts that it keeps, and each running text."""
    verify: int
    """Logits, laws and activations of the largest step: every running text with the longest draft, and a full share of
    prompts whose logprobs are asked for. And the logits of a level of drafts, or of all levels where heads
    speak at once.
    """

    def as_dict(self) -> dict[str, int]:
        """For the wire."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        return (
            f"weights {mib(self.weights)}, draft weights {mib(self.draft_weights)}, target KV {mib(self.kv)}, "
            f"draft KV {mib(self.draft_kv)}, suffix texts {mib(self.suffix)}, verify slots {mib(self.verify)}"
        )

    @property
    def beside_weights(self) -> int:
        """All but what is there once the models are loaded."""
        return self.kv + self.draft_kv + self.suffix + self.verify

    def shortage(self, available: int) -> str | None:
        """Why this does not fit beside the weights, which are loaded, and what to lower; None if it fits."""
        missing = self.beside_weights - available
        if missing <= 0:
            return None
        if missing < self.kv + self.draft_kv:
            lower = f"lower engine.kv_mib to {(self.kv + self.draft_kv - missing) >> 20}"
        else:
            lower = "lower engine.max_running or policy.k_max"
        return f"memory for {self.text()} is {mib(missing)} more than the {mib(available)} available: {lower}"


def budget(launch: Launch, loaded: LoadedModel, parts: Parts) -> Budget:
    """What an engine with these settings needs. The policy's bounds on drafts count as they are at launch."""
    positions = kv_blocks(launch, loaded, parts) * launch.block_size
    size = loaded.dtype.itemsize
    verified = most_rows(launch.policy, launch.max_running)
    read = (loaded.vocabulary + loaded.row_width) * size
    return Budget(
        weights=loaded.weight_bytes,
        draft_weights=parts.weight_bytes,
        kv=positions * loaded.bytes_per_position,
        draft_kv=positions * parts.bytes_per_position(size),
        suffix=_suffix_bytes(launch, loaded, positions),
        verify=verified * row_bytes(loaded)
        + launch.max_batch_tokens * read
        + launch.max_running * parts.rows_at_once * _SAID * size * loaded.vocabulary
        + _encoding_bytes(loaded, loaded.context(launch.max_context)),
    )


def row_bytes(loaded: LoadedModel) -> int:
    """Of a row that is verified: its logits with their edited copy, its laws and activations."""
    size = loaded.dtype.itemsize
    return (2 * size + _LAW_BYTES) * loaded.vocabulary + size * loaded.row_width


def _suffix_bytes(launch: Launch, loaded: LoadedModel, positions: int) -> int:
    """positions: of the pool, beyond which running texts together do not reach."""
    if "suffix" not in launch.draft.kinds:
        return 0
    running = min(launch.max_running * loaded.context(launch.max_context), positions)
    return launch.draft.suffix_bytes + running * PLACE_BYTES


def _encoding_bytes(loaded: LoadedModel, prompt: int) -> int:
    """Activations of the longest prompt, which an encoder reads at once: of its rows, and what each head sees."""
    if not loaded.encoder_heads:
        return 0
    return (prompt * loaded.row_width + _SCORES * loaded.encoder_heads * prompt**2) * loaded.dtype.itemsize


def kv_blocks(launch: Launch, loaded: LoadedModel, parts: Parts) -> int:
    """Blocks that the memory for keys and values holds, the drafts' included. Raises CannotServeError if none."""
    each = loaded.bytes_per_position + parts.bytes_per_position(loaded.dtype.itemsize)
    blocks = launch.kv_bytes // (each * launch.block_size)
    if blocks < 1:
        raise CannotServeError(
            f"{launch.kv_bytes >> 20} MiB hold no block of {launch.block_size} tokens at "
            f"{each} bytes each: raise engine.kv_mib"
        )
    return blocks


def require(shortage: str | None) -> None:
    """Raises MemoryShortageError with what is short, if anything is."""
    if shortage is not None:
        raise MemoryShortageError(shortage)
