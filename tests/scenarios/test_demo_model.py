"""The demo model through the official client, as a newcomer meets it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from specd.errors import ModelError
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target
from tests.scenarios.stage import RealDaemon, Stage

pytestmark = pytest.mark.demo

SENTENCE = "The lighthouse keeper counted ninety-two steps, lit the lamp, and wrote the time in his book."
COPY = f"Copy this text exactly:\n\n{SENTENCE}"
LETTER = (
    "He had kept that book for thirty years, and nobody had ever asked to see it. On the first page stood the name of "
    "the keeper before him, and under it a line about the weather. Every evening he added a line of his own: the wind, "
    "the ships, and the hour at which the fog came in from the north."
)
ROWS_ARE_CHEAP = {"row_cost": 0.05}
"""What is measured beside other tests may say that drafts do not pay, and then rightly nothing is drafted."""
STORY = "Write a short story about a dog."


@pytest.fixture(scope="module")
def daemon(stage: Stage) -> Iterator[RealDaemon]:
    try:
        resolve_target("demo")
    except ModelError as missing:
        pytest.skip(str(missing))
    target = {"path": "demo", "name": "", "dtype": "auto"}
    env = {"SPECD_CACHE_DIR": str(cache_dir())}
    with stage.daemon(env, model={"target": target}, policy=ROWS_ARE_CHEAP) as daemon:
        yield daemon.ready()


def chat(daemon: RealDaemon, content: str, *, tokens: int = 48, **specd: Any) -> tuple[str, Any]:
    """A streamed answer, and its last chunk. A class of its own starts from the prior, whatever others showed."""
    with daemon.client() as client:
        *chunks, tail = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"specd": {"report": True, **specd}},
        )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), tail


def mean_k(report: dict[str, Any]) -> float:
    return sum(int(k) * rounds for k, rounds in report["k_histogram"].items()) / report["rounds"]


def test_it_knows_a_capital(daemon: RealDaemon) -> None:
    """Test that the answer to a simple question makes sense: weights, tokenizer and template fit together."""
    text, tail = chat(daemon, "What is the capital of France?")
    assert "Paris" in text
    assert 0 < tail.usage.completion_tokens < 48


@pytest.mark.parametrize("speculate", ["off", "auto"])
def test_it_copies(daemon: RealDaemon, speculate: str) -> None:
    """Test that a sentence comes back word for word, with drafts in far fewer rounds than it has tokens."""
    text, tail = chat(daemon, COPY, speculate=speculate)
    assert SENTENCE in text
    report = tail.specd
    if speculate == "off":
        assert report["drafted"] == 0
    else:
        assert sum(report["accepted"]) > 0
        assert report["rounds"] < tail.usage.completion_tokens / 2


def test_k_adapts_to_the_text(daemon: RealDaemon) -> None:
    """Test that from the same prior, k grows where drafts are kept and stays or falls where the text is new: in so many
    rounds that what is learned, of three rounds at a time, is acted upon."""
    _, copied = chat(daemon, f"{COPY} {LETTER}", tokens=160, **{"class": "copies"})
    _, told = chat(daemon, STORY, tokens=96, **{"class": "stories"})
    assert len(copied.specd["k_histogram"]) > 1
    assert mean_k(copied.specd) > mean_k(told.specd)
    acceptance = daemon.status()["acceptance"]
    assert acceptance["copies"] > 0.8


def test_it_answers_in_the_shape_of_a_schema(daemon: RealDaemon) -> None:
    """Test that a JSON schema is kept to, and that what it leaves no choice about costs no rounds."""
    capital = {
        "type": "object",
        "properties": {
            "country": {"enum": ["France", "Germany"]},
            "capital": {"type": "string", "maxLength": 20},
            "inhabitants": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        },
        "required": ["country", "capital", "inhabitants"],
        "additionalProperties": False,
    }
    with daemon.client() as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Which is the capital of France? Answer in JSON."}],
            temperature=0,
            max_tokens=80,
            response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": capital}},
            extra_body={"specd": {"report": True}},
        )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    found = json.loads(choice.message.content)
    assert found.keys() == capital["properties"].keys()
    assert found["country"] == "France"
    assert "Paris" in found["capital"]
    assert answer.specd["proposers"]["grammar"] > 0
    assert answer.specd["rounds"] < answer.usage.completion_tokens
