"""What drafts read of the target's forward."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.attention.paged import PagedAttention
from engine.batch import Span, pack
from engine.draft.features import Features, Reads
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel, load
from engine.model.taps import Taps
from tests.tiny import make_model_dir

CPU = torch.device("cpu")
TOKENS = [5, 9, 4, 7, 5]


def tapped(model: LoadedModel, layers: list[int]) -> tuple[Taps, KVMemory]:
    memory = KVMemory(model.shapes, 4, 4, torch.float32, CPU, features={"a": 2, "b": 1})
    table = BlockTable(BlockPool(4, 4))
    table.reserve(len(TOKENS))
    batch = pack([Span(table, 0, TOKENS, 1)], CPU)
    taps = Taps(layers)
    model.forward(batch.tokens, batch.positions, PagedAttention(memory, batch), batch.logit_rows, taps)
    reads = {
        "a": Reads((layers[0],), 2, lambda found: found[:, :2]),
        "b": Reads((layers[-1], layers[0]), 1, lambda found: found[:, :1]),
    }
    Features(memory, reads).keep(batch, taps)
    return taps, memory


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_taps_are_transformers_hidden_states(tmp_path, model_type: str) -> None:
    """The lean forward and transformers' own, from the embeddings to the last layer, before its norm and behind it."""
    folder = make_model_dir(tmp_path, model_type)
    model = load(folder, torch.float32, CPU, lambda _: None)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    n = plain.config.num_hidden_layers
    last: list[torch.Tensor] = []
    plain.model.layers[-1].register_forward_hook(
        lambda _, __, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.inference_mode():
        states = plain(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    taps, memory = tapped(model, list(range(n + 2)))
    for layer in range(n):
        torch.testing.assert_close(taps.of([layer]), states[layer][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(taps.of([n]), last[0].view_as(taps.of([n])), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        taps.of([n + 1]), states[n][0], atol=1e-5, rtol=1e-5
    )  # transformers norms its last
    slots = len(TOKENS)
    torch.testing.assert_close(memory.features["a"][:slots], states[0][0][:, :2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(memory.features["b"][:slots], taps.of([n + 1])[:, :1])
