"""What runs a model: transformers' own forward, the reference, for any family that passes the checks."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from engine.attention.paged import AttentionContext
from engine.model.ends import Ends
from engine.model.taps import Taps


class Forward(Protocol):
    """A model as the engine calls it. Pure but for the KV that `attention` writes."""

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        logit_rows: Tensor,
        taps: Taps | None = None,
    ) -> Tensor:
        """tokens, positions: [1, T]; logit_rows: [R], indices into T -> logits [R, V]. Fills the taps."""

    @property
    def ends(self) -> Ends:
        """What is around the model's layers."""

    def without_layers(self, skip: tuple[int, ...]) -> Self:
        """The same model with these layers left out. Shares all weights."""


class TransformersForward:
    """transformers' forward of a causal LM loaded with our attention function."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        logit_rows: Tensor,
        taps: Taps | None = None,
    ) -> Tensor:
        """See Forward. The ForCausalLM is called, not its base: some heads scale or cap their logits."""
        with _tapped(self._model, taps):
            out = self._model(
                input_ids=tokens,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=logit_rows,
                specd=attention,
            )
        return out.logits[0]  # type: ignore[no-any-return]

    @property
    def ends(self) -> Ends:
        """See Forward."""
        return Ends(self._model.get_input_embeddings().weight, self._model.get_output_embeddings())

    def without_layers(self, skip: tuple[int, ...]) -> "TransformersForward":
        """See Forward."""
        return TransformersForward(without_layers(self._model, skip))


@contextmanager
def _tapped(model: Any, taps: Taps | None) -> Iterator[None]:
    """While open, layers tell the taps what goes in and out of them. transformers' own record norms the last one."""
    if taps is None:
        yield
        return
    layers = decoder_layers(model)
    with ExitStack() as hooks:
        for tap in taps.layers:
            if tap == 0:
                handle = layers[0].register_forward_pre_hook(_tell_input(taps))
            else:
                module = layers[tap - 1] if tap <= len(layers) else model.base_model
                handle = module.register_forward_hook(_tell_output(taps, tap))
            hooks.callback(handle.remove)
        yield


def _tell_input(taps: Taps) -> Callable[..., None]:
    def tell(_: nn.Module, args: tuple[Any, ...]) -> None:
        taps.put(0, args[0][0])

    return tell


def _tell_output(taps: Taps, tap: int) -> Callable[..., None]:
    def tell(_: nn.Module, __: Any, out: Any) -> None:
        taps.put(tap, (out if isinstance(out, Tensor) else out[0])[0])

    return tell


class _Skipped(nn.Module):
    """In place of a decoder layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        if hasattr(layer, "attention_type"):  # some models look up masks and angles by it
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The input."""
        del args, kwargs
        return hidden_states


def decoder_layers(model: Any) -> nn.ModuleList:
    """The decoder layers of a causal LM, in order."""
    wanted = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise LookupError(f"{type(model).__name__} has no list of {wanted} decoder layers")


def without_layers(model: Any, skip: tuple[int, ...]) -> Any:
    """A copy of the module tree around the decoder layers, with some of them replaced; weights are shared."""
    layers = decoder_layers(model)
    kept = nn.ModuleList(_Skipped(layer) if i in skip else layer for i, layer in enumerate(layers))
    return _replace(model, layers, kept)


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    if module is old:
        return new
    children = {name: _replace(child, old, new) for name, child in module.named_children()}
    if all(children[name] is child for name, child in module.named_children()):
        return module
    clone = copy.copy(module)
    clone._modules = {**module._modules, **children}  # noqa: SLF001
    return clone
