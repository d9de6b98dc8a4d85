"""Multi-token-prediction modules: heads that some families ship in the target's own files.

A module is a decoder layer of the family behind a projection of a token's embedding beside the hidden state of the
position before it, each normed; transformers has the classes and knows the files. Source: DeepSeek-AI, "DeepSeek-V3
technical report", 2024. A module is trained to guess one token; it goes on from its own output for the tokens after
that, as EAGLE's heads do. Files may hold several modules, one for each further token: the first one drafts.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import MtpModel
from transformers.utils import logging

from engine.attention import paged
from engine.attention.paged import AttentionContext, Probe
from engine.heads.eagle import Said
from engine.heads.load import LoadedHead
from engine.heads.tensors import HeadError
from engine.kv.memory import LayerShape
from engine.model.ends import Ends
from engine.model.loader import LoadedModel
from engine.model.packed import can_pack, pack_linears
from engine.model.support import modules_reason


class MtpHead:
    """See engine.heads.eagle.HeadForward."""

    def __init__(self, layer: Any, rotary: Callable[..., tuple[Tensor, Tensor]], ends: Ends) -> None:
        """layer: transformers' MtpLayer with the engine's attention. rotary, ends: the target's."""
        self._layer = layer
        self._rotary = rotary
        self._ends = ends

    @torch.inference_mode()
    def __call__(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: AttentionContext, rows: Tensor
    ) -> Said:
        """See HeadForward."""
        embedded = F.embedding(tokens, self._ends.embedding)  # [1, T, H]
        out = self._layer(
            embedded,
            hidden[None],
            position_embeddings=self._rotary(embedded, position_ids=positions),
            attention_mask=None,
            position_ids=positions,
            cache=None,
            specd=attention,
        )
        said = out[0, rows]
        return Said(said, self._ends.head(said))

    def kv_shape(self) -> LayerShape:
        """What it stores per position. Raises HeadError for a layer that does not attend once."""
        found, device = Probe(), self._ends.embedding.device
        token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self(token, self._ends.embedding[:1], token, found, token[0])
        if found.calls != {0: 1}:
            raise HeadError(
                f"the module should call attention once, but the calls by layer were {found.calls}"
            )
        return found.shapes[0]


def load_mtp(target: LoadedModel, say: Callable[[str], None]) -> LoadedHead:
    """The first module in the target's own files. Raises HeadError with a sentence."""
    reason = modules_reason(target.model_type)
    if reason:
        raise HeadError(reason)
    config = AutoConfig.from_pretrained(target.path, trust_remote_code=False, local_files_only=True)
    if not config.get_text_config().num_mtp_layers:
        raise HeadError(f"{target.path} has no multi-token-prediction module: its config names none")
    skeleton = _skeleton(config, target.dtype)
    modules = _modules(skeleton, target.path)
    layer = modules.layers[0].to(target.device).eval().requires_grad_(requires_grad=False)
    ends = target.forward.ends
    head = MtpHead(layer, _rotary(skeleton, modules, target.device), ends)
    weight_bytes = sum(each.numel() * each.element_size() for each in layer.parameters())
    shape = head.kv_shape()
    if can_pack(target.dtype, target.device):
        pack_linears(layer)
    say(f"multi-token-prediction module: {weight_bytes >> 20} MiB")
    return LoadedHead(
        forward=head,
        fused=None,
        kernels=target.kernels,
        features=_as_it_is,
        taps=(len(target.shapes) + 1,),
        width=ends.embedding.shape[1],
        targets=None,
        kv_shape=shape,
        weight_bytes=weight_bytes,
    )


def _as_it_is(taps: Tensor) -> Tensor:
    return taps


def _skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The target without weights, which transformers finds the module's classes and keys by."""
    paged.register()
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=paged.NAME)
    # The classes list the keys of the checkpoints that were published; any other depth puts them elsewhere.
    first = config.get_text_config().num_hidden_layers
    modules = range(first, first + config.get_text_config().num_mtp_layers)
    known = skeleton._keys_to_ignore_on_load_unexpected or []  # noqa: SLF001
    skeleton._keys_to_ignore_on_load_unexpected = [  # noqa: SLF001
        *known,
        *(rf"(^|\.)layers\.{module}\." for module in modules),
    ]
    return skeleton


def _modules(skeleton: Any, path: Path) -> Any:
    logging.disable_progress_bar()
    try:
        return MtpModel.from_pretrained(skeleton)
    except (RuntimeError, ValueError) as fault:
        raise HeadError(f"{path} has no multi-token-prediction module that can be loaded: {fault}") from fault


def _rotary(skeleton: Any, modules: Any, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    """The target's; some families have one for each type of layer."""
    rotary = type(skeleton.get_decoder().rotary_emb)(config=skeleton.config.get_text_config()).to(device)
    return partial(rotary, layer_type=modules.config.layer_types[0]) if modules.has_per_layer_rope else rotary
