"""Heads on disk: each layout reads back what was written, and each misfit is refused by its own sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.heads.formats import Fit, read_eagle
from engine.heads.tensors import HeadError
from tests.tiny import VOCABULARY
from tests.tiny_heads import BLOCK, HIDDEN, KNOWN, LAYERS, eagle_tensors, known_tokens, make_eagle_dir

FIT = Fit(HIDDEN, VOCABULARY, LAYERS)
PREFIX = {"speculators": "layers.0.", "safeailab": "midlayer.", "eagle1": "layers.0."}


@pytest.mark.parametrize("layout", PREFIX)
def test_each_layout_reads_back_what_was_written(tmp_path: Path, layout: str) -> None:
    shape, tensors, targets = read_eagle(make_eagle_dir(tmp_path, layout), FIT)
    written = eagle_tensors(layout)
    prefix = PREFIX[layout]
    named = {
        key.replace(prefix, "layer."): value for key, value in written.items() if key not in ("d2t", "t2d")
    }
    assert tensors.keys() == named.keys()
    assert all(torch.equal(tensors[key], named[key]) for key in named)
    assert shape.block.rms_norm_eps == BLOCK["rms_norm_eps"]
    if layout == "eagle1":
        assert (shape.version, shape.taps, shape.vocabulary, targets) == (1, (LAYERS + 1,), VOCABULARY, None)
        assert shape.fc_bias
    else:
        assert (shape.version, shape.vocabulary, shape.norm_before_residual) == (3, KNOWN, False)
        assert shape.taps == ((1, 2, 4) if layout == "speculators" else (2, LAYERS // 2, LAYERS - 3))
        assert torch.equal(targets, known_tokens())


@pytest.mark.parametrize("before", [True, False])
def test_speculators_say_whether_they_norm_before_the_residual(tmp_path: Path, before: bool) -> None:
    shape = read_eagle(make_eagle_dir(tmp_path, norm_before_residual=before), FIT).shape
    assert shape.norm_before_residual is before


def test_the_bias_of_fc_goes_by_the_config_and_is_expected_unless_it_says_no(tmp_path: Path) -> None:
    tensors = eagle_tensors("eagle1")
    del tensors["fc.bias"]
    folder = make_eagle_dir(tmp_path, "eagle1", tensors=tensors, bias=False)
    assert not read_eagle(folder, FIT).shape.fc_bias
    with pytest.raises(HeadError, match=r"lacks 1 of its weights: fc\.bias"):
        read_eagle(make_eagle_dir(tmp_path, "eagle1", tensors=tensors), FIT)


def test_what_the_targets_library_left_behind_is_not_missed(tmp_path: Path) -> None:
    tensors = eagle_tensors("eagle1") | {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    assert read_eagle(make_eagle_dir(tmp_path, "eagle1", tensors=tensors), FIT).shape.version == 1


def changed(**tensors: Tensor | None) -> dict[str, Tensor]:
    """Those of a speculators head, some of them others or (None) gone. `__` stands for a dot."""
    found: dict[str, Any] = eagle_tensors("speculators")
    found |= {key.replace("__", "."): value for key, value in tensors.items()}
    return {key: value for key, value in found.items() if value is not None}


MISFITS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Tensor]], str]] = {
    "unknown keys": (
        {},
        lambda: changed(layers__1__x=torch.ones(1), extra=torch.ones(1)),
        r"has 2 weights that nothing reads: extra, layers\.1\.x",
    ),
    "a missing key": ({}, lambda: changed(norm__weight=None), r"lacks 1 of its weights: norm\.weight"),
    "a wrong shape": (
        {},
        lambda: changed(norm__weight=torch.ones(3)),
        r"norm\.weight is 3 and should be 64",
    ),
    "no EAGLE head": ({}, lambda: {"a": torch.ones(1)}, "no EAGLE head: it has no fc.weight, but a"),
    "silent on the residual": ({"norm_before_residual": None}, changed, "does not say norm_before_residual"),
    "another algorithm": (
        {"speculators_model_type": "dflash"},
        changed,
        "speculators_model_type is 'dflash': heads of that library can be loaded if it is eagle3",
    ),
    "no layer": ({"transformer_layer_config": None}, changed, "has no transformer_layer_config"),
    "another hidden size": (
        {},
        lambda: changed(fc__weight=torch.ones(HIDDEN, 96)),
        "made for a target of hidden size 32, this one has 64",
    ),
    "another vocabulary": (
        {"transformer_layer_config": {**BLOCK, "vocab_size": 1000}},
        changed,
        "made for a vocabulary of 1000 tokens, the target's has 320",
    ),
    "another family": (
        {"transformer_layer_config": {**BLOCK, "model_type": "mixtral"}},
        changed,
        "one of mixtral: those of llama are supported",
    ),
    "two layers": (
        {"transformer_layer_config": {**BLOCK, "num_hidden_layers": 2}},
        changed,
        "has 2 decoder layers: one is supported",
    ),
    "a RoPE that looks at the batch": (
        {"transformer_layer_config": {**BLOCK, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}},
        changed,
        "RoPE is dynamic",
    ),
    "another activation": (
        {"transformer_layer_config": {**BLOCK, "hidden_act": "gelu"}},
        changed,
        "activation is gelu",
    ),
    "layers that are not there": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]},
        changed,
        r"reads hidden states \[1, 2, 9\]: three of 0 to 4 are what the target has",
    ),
    "norms of their own before fc": ({"fc_norm": True}, changed, "norms each hidden state by itself"),
    "no map of its vocabulary": ({}, lambda: changed(d2t=None), "has no d2t that says which"),
    "tokens instead of offsets": (
        {},
        lambda: changed(d2t=known_tokens() + 200),
        "d2t does not name the target's tokens: it must hold offsets",
    ),
    "t2d of another head": (
        {},
        lambda: changed(t2d=torch.arange(VOCABULARY) < KNOWN),
        "t2d and d2t disagree",
    ),
    "nothing to say": ({}, lambda: changed(lm_head__weight=None), "has no lm_head.weight and cannot share"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_head_that_does_not_fit_is_refused_with_a_sentence(tmp_path: Path, misfit: str) -> None:
    config, tensors, sentence = MISFITS[misfit]
    folder = make_eagle_dir(tmp_path, tensors=tensors(), **config)
    with pytest.raises(HeadError, match=sentence):
        read_eagle(folder, FIT)


def test_the_head_of_a_wider_target_cannot_share_its_embedding(tmp_path: Path) -> None:
    tensors = changed(fc__weight=torch.ones(HIDDEN, 3 * 128))
    with pytest.raises(
        HeadError, match=r"no embed_tokens\.weight and cannot share the target's: its width is 64"
    ):
        read_eagle(make_eagle_dir(tmp_path, tensors=tensors), Fit(128, VOCABULARY, LAYERS))


def test_an_eagle_1_layout_that_is_none_is_told_what_it_looks_like(tmp_path: Path) -> None:
    tensors = eagle_tensors("eagle1") | {"fc.weight": torch.ones(HIDDEN, 3 * HIDDEN)}
    with pytest.raises(
        HeadError, match=r"fc\.weight takes 192 numbers: EAGLE-1 and 2 heads of width 64 take 128"
    ):
        read_eagle(make_eagle_dir(tmp_path, "eagle1", tensors=tensors), FIT)


def test_code_in_an_old_file_does_not_run(tmp_path: Path) -> None:
    folder = make_eagle_dir(tmp_path, "eagle1")
    torch.save({"fc.weight": Trap(folder / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(HeadError, match="cannot be read as plain weights"):
        read_eagle(folder, FIT)
    assert not (folder / "ran").exists()


class Trap:
    """Touches a file where it is unpickled with code allowed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)
