"""On a GPU: the engine says what it says on a CPU, with CUDA graphs and without. `make bench-gpu` goes on from here."""

from pathlib import Path

import msgspec
import pytest
import torch

from engine.api import DraftSettings, Launch
from engine.start import start
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, generate, request
from tests.tiny import make_model_dir

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and torch's CUDA build")


def texts(launch: Launch) -> dict[str, list[int]]:
    said: list[str] = []
    engine = start(launch, said.append)
    assert launch.device == "cpu" or any("Triton" in line for line in said if "self-check passed" in line), (
        said
    )
    graphs = [line for line in said if "captured" in line or "no CUDA graphs" in line]
    assert len(graphs) == (launch.device == "cuda" and launch.cuda_graphs)
    outputs = generate(
        engine,
        request("copy", [5, 9, 31, 7, 12, 80] * 5),
        request("long", list(range(3, 130)), k=6),
        request("sampled", [8, 9] * 30, temperature=0.8, seed=3),
    )
    return {name: output.tokens for name, output in outputs.items()}


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_a_gpu_says_what_a_cpu_says(tmp_path: Path, family: str, kind: str, graphs: bool) -> None:
    launch = Launch(
        model_path=str(make_model_dir(tmp_path, family)),
        dtype="float32",
        max_running=4,
        max_batch_tokens=64,
        kv_bytes=1 << 22,
        draft=DraftSettings(kinds=(kind,), ngram_min=1, ngram_max=3),
        policy=PolicySettings(kind="static", static_k=3, load=UNCAPPED, tree_nodes=0),
    )
    on_gpu = msgspec.structs.replace(launch, device="cuda", cuda_graphs=graphs)
    assert texts(on_gpu) == texts(launch)
