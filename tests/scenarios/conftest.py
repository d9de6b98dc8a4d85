"""A stage for all scenarios, checked after each of them."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from tokenizers import Tokenizer

from tests.daemon.daemon_process import VLLM
from tests.kernels import compiled
from tests.scenarios.on_vllm import reason
from tests.scenarios.stage import RealDaemon, Stage
from tests.tiny import CHAT_TEMPLATE, make_model_dir

TOOLS = '{% if tools %}{{ tools | tojson }}: <tool_call>{"name": …, "arguments": …}</tool_call>{% endif %}'
"""What a chat template says of tools, as far as it matters to the daemon."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With vLLM as the engine, leave out what it cannot do."""
    for item in items if VLLM else ():
        if (why := reason(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its context is long enough for requests that do not end by themselves while a test looks; it is told of tools."""
    sizes = {"head_dim": 32} if VLLM else {}  # smaller heads its kernels do not know
    directory = make_model_dir(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096, **sizes)
    (directory / "chat_template.jinja").write_text(TOOLS + CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Stage:
    return Stage(tmp_path_factory.mktemp("daemons"), tiny_dir, compiled(tmp_path_factory))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(stage: Stage) -> Iterator[None]:
    yield
    stage.check()


@pytest.fixture(scope="session")
def served(stage: Stage) -> Iterator[RealDaemon]:
    """The daemon of all scenarios that leave it as it was. Prompt lookup from one token on finds something."""
    with stage.daemon(engine={"max_running": 8}, model={"draft": {"ngram_min": 1, "ngram_max": 3}}) as daemon:
        yield daemon.ready()


@pytest.fixture(scope="module")
def client(served: RealDaemon) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
