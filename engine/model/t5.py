"""Models of T5's kind, as the engine runs them: an encoder that reads the whole prompt once, and a decoder whose rows
are packed like those of any other model.

The encoder is transformers' own. The decoder's modules are, too, but what lies between them is written here:
transformers' forward knows no ragged rows. Positions are a bias on self attention, by distance alone, so rows of many
texts need nothing but the bias of each distance.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine.attention.paged import AttentionContext
from engine.attention.sourced import Source, SourcedAttention
from engine.kv.memory import LayerShape
from engine.model.ends import Ends
from engine.model.taps import Taps

# What models of this kind were trained on, prompt and text each, where a config does not say.
_TRAINED_POSITIONS: Final = 512


@dataclass(frozen=True, slots=True)
class _Layer:
    """A decoder layer's modules."""

    place: int
    norm_text: nn.Module
    text: Any  # self attention
    norm_source: nn.Module
    source: Any  # cross attention
    feed: nn.Module  # with its norm and residual
    bias: Tensor  # [heads, distances]; the last one holds for all beyond


class T5Forward:
    """See engine.model.forward.Forward."""

    def __init__(self, model: Any, skip: Collection[int] = ()) -> None:
        self._model = model
        self._layers = [layer for layer in _layers(model.decoder) if layer.place not in skip]
        self._heads = int(model.config.num_heads)
        self._scale = model.model_dim**-0.5 if getattr(model.config, "scale_decoder_outputs", False) else 1.0

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        logit_rows: Tensor,
        taps: Taps | None = None,
    ) -> Tensor:
        """See Forward. Rows of a source are encoded and have no logits."""
        del positions  # only distances count, and the attention knows them
        assert isinstance(attention, SourcedAttention), "a T5 attends to a source"
        assert taps is None, "heads are refused, see engine.draft.registry"
        for source in attention.sources:
            self._encode(tokens[:, source.rows], attention, source)
        if not len(attention.rows):
            return tokens.new_zeros((0, self._model.lm_head.out_features), dtype=self._model.dtype)
        hidden = self._decode(tokens[0, attention.rows], attention)
        decoded = torch.searchsorted(attention.rows, logit_rows)  # their places among the decoder's rows
        return self._model.lm_head(hidden[decoded] * self._scale)  # type: ignore[no-any-return]

    @property
    def ends(self) -> Ends:
        """See Forward. Of the decoder."""
        return Ends(
            self._model.decoder.embed_tokens.weight, lambda hidden: self._model.lm_head(hidden * self._scale)
        )

    def without_layers(self, skip: tuple[int, ...]) -> "T5Forward":
        """See Forward. Of the decoder: drafts share the encoder's work."""
        return T5Forward(self._model, skip)

    def _encode(self, tokens: Tensor, attention: SourcedAttention, source: Source) -> None:
        """Every layer's keys and values of a prompt. tokens: [1, S]."""
        states = self._model.encoder(input_ids=tokens).last_hidden_state[0]  # [S, H]
        for layer in self._layers:
            key, value = (self._split(project(states)) for project in (layer.source.k, layer.source.v))
            attention.write_source(layer.place, source, key, value)

    def _decode(self, tokens: Tensor, attention: SourcedAttention) -> Tensor:
        """[D] -> [D, H], normed."""
        decoder = self._model.decoder
        hidden = decoder.embed_tokens(tokens)
        for layer in self._layers:
            x, text = layer.norm_text(hidden), layer.text
            query, key, value = (self._split(project(x)) for project in (text.q, text.k, text.v))
            hidden = hidden + text.o(attention.attend_text(layer.place, query, key, value, layer.bias))
            query = self._split(layer.source.q(layer.norm_source(hidden)))
            hidden = hidden + layer.source.o(attention.attend_source(layer.place, query))
            hidden = layer.feed(hidden)
        return decoder.final_layer_norm(hidden)  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        """[rows, heads * dim] -> [rows, heads, dim]."""
        return x.view(len(x), self._heads, -1)


def shapes(config: Any) -> dict[int, LayerShape]:
    """What each layer of the decoder stores of a token, the prompt's or the text's."""
    return dict.fromkeys(
        range(config.num_decoder_layers), LayerShape(config.num_heads, config.d_kv, config.d_kv)
    )


def usual_context(config: Any) -> int:
    """Tokens of prompt and text together that such a model was trained for. There is no hard limit."""
    return 2 * int(getattr(config, "n_positions", None) or _TRAINED_POSITIONS)


def start_token(model: Any) -> int:
    """What a text begins with, unseen."""
    own = model.generation_config.decoder_start_token_id if model.generation_config else None
    found = model.config.decoder_start_token_id if own is None else own
    return int(model.config.pad_token_id if found is None else found)


def row_width(config: Any) -> int:
    """Activations that one row has in flight at a time: residual, input, queries with keys and values, output; and the
    two sides of a gate with their product.
    """
    return int(2 * config.d_model + 4 * config.num_heads * config.d_kv + 3 * config.d_ff)


def _layers(decoder: Any) -> list[_Layer]:
    found: list[_Layer] = []
    for place, block in enumerate(decoder.block):
        text, source, feed = block.layer
        attention = text.SelfAttention
        shares = not attention.has_relative_attention_bias  # with the first layer
        bias = found[0].bias if shares else _bias(attention)
        found.append(
            _Layer(place, text.layer_norm, attention, source.layer_norm, source.EncDecAttention, feed, bias)
        )
    return found


@torch.inference_mode()
def _bias(attention: Any) -> Tensor:
    """[heads, D]: of a key so far behind its row. From D - 1 on all distances are alike."""
    reach = attention.relative_attention_max_distance
    row = attention.compute_bias(1, reach + 1, past_seen_tokens=reach)  # [1, heads, 1, D], nearest last
    return row[0, :, 0].flip(-1).contiguous()  # type: ignore[no-any-return]
