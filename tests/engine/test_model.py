"""What the loader refuses, and that packing and packed rows do not change what a model says."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from engine.model import loader
from engine.model.check import probe
from engine.model.forward import TransformersForward, decoder_layers, without_layers
from engine.model.loader import load
from engine.model.packed import can_pack, pack_linears
from engine.model.support import UnsupportedModelError, unsupported_reason
from tests.tiny import make_model_dir

CPU = torch.device("cpu")


def quiet(_: str) -> None:
    """Nobody listens."""


def reason(kind: str, **values: object) -> str | None:
    config = AutoConfig.for_model(kind, **values)
    return unsupported_reason(config, AutoModelForCausalLM._model_mapping.get(type(config), None))


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        ("bloom", {}, "does not call a pluggable attention function"),
        ("mpt", {}, "does not call a pluggable attention function"),
        ("falcon", {"alibi": True}, "does not call a pluggable attention function"),
        ("mamba", {}, "recurrent state"),
        ("qwen3_next", {}, "recurrent state"),
        ("lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, "layers of type conv"),
        ("llama4_text", {}, "layers of type chunked_attention"),
        ("deepseek_v32", {}, "layers of type indexed_attention"),
        (
            "phi3",
            {
                "max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 1.0,
                    "original_max_position_embeddings": 32,
                    "short_factor": [1.0] * 48,
                    "long_factor": [2.0] * 48,
                },
            },
            "longrope RoPE",
        ),
        ("minimax", {}, "layers of type linear_attention"),
        ("granitemoehybrid", {}, "recurrent state"),
        ("bert", {}, "is an encoder"),
        ("bart", {}, "encoder-decoder"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic RoPE",
        ),
    ],
)
def test_models_that_would_be_silently_wrong_are_refused_by_a_sentence(
    kind: str, values: dict, sentence: str
) -> None:
    assert sentence in reason(kind, **values)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt2", "mistral"])
def test_supported_models_have_no_reason(kind: str) -> None:
    assert reason(kind) is None


def test_missing_weights_are_refused_not_drawn_at_random(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    with pytest.raises(UnsupportedModelError, match="random numbers"):
        load(path, torch.float32, CPU, quiet)


def test_an_attention_that_forgets_the_cache_fails_the_self_check(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check would be idle if it could not fail: rows that see one key too few."""
    from engine.attention.plan import Group  # noqa: PLC0415

    right = Group.mask

    def wrong(self: Group, window: int | None, *rest: object) -> torch.Tensor:
        return right(self, 2, *rest)

    monkeypatch.setattr(Group, "mask", wrong)
    with pytest.raises(UnsupportedModelError, match="self-check failed"):
        load(tiny_dir, torch.float32, CPU, quiet)


@pytest.mark.skipif(
    not can_pack(torch.bfloat16, CPU), reason="this processor has no packed bf16 kernels (needs AVX-512)"
)
def test_packed_linears_equal_plain_ones_to_rounding(tiny_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.bfloat16).eval()
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        before = model(ids).logits
        assert pack_linears(model) == 4 * 7 + 1
        after = model(ids).logits
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert (after - before).abs().max() <= 0.05 * before.abs().max()
    assert (after.argmax(-1) == before.argmax(-1)).float().mean() > 0.9


def test_a_view_without_layers_shares_weights_and_leaves_the_model_alone(tiny_dir: Path) -> None:
    model = loader._weights(tiny_dir, torch.float32).eval()
    view = without_layers(model, (1, 2))
    assert len(decoder_layers(view)) == 4
    assert decoder_layers(view)[0] is decoder_layers(model)[0]
    assert decoder_layers(view)[1] is not decoder_layers(model)[1]
    assert view.lm_head is model.lm_head
    assert type(decoder_layers(model)[1]).__name__ == "LlamaDecoderLayer"


def test_weights_are_not_copied_where_there_is_no_room_for_a_second_time(
    tiny_dir: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would end a process that takes more than there is; one path changes the weights in place."""
    monkeypatch.setattr(loader, "available_bytes", lambda _: 0)
    said: list[str] = []
    loaded = load(tiny_dir, torch.bfloat16, CPU, said.append, cache=kernel_cache)
    assert isinstance(loaded.forward, TransformersForward)
    assert any(line.startswith("not used: lean forward: it copies the weights, for which") for line in said)


def test_a_window_that_only_the_mask_knows_is_refused(tiny_dir: Path) -> None:
    """Without a mask such a model would look beyond its window, and short prompts would not show it."""
    model = loader._weights(tiny_dir, torch.float32).eval()
    model.config.sliding_window = 8
    with pytest.raises(UnsupportedModelError, match="look beyond the window"):
        probe(model)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_inner_config_of_a_composite_model_is_judged_too(family: str) -> None:
    """What a vision wrapper hides in its text_config is still what runs."""
    inner = AutoConfig.for_model(family)
    inner.layer_types = ["chunked_attention"]
    outer = SimpleNamespace(model_type="wrapper", text_config=inner)
    assert "chunked_attention" in unsupported_reason(outer)
