"""A daemon whose drafts come from a smaller model."""

from pathlib import Path

import openai

from tests.scenarios.stage import Stage
from tests.tiny import make_noisy_dir


def test_a_draft_model_speeds_up_the_text_of_the_target(stage: Stage, tiny_dir: Path, tmp_path: Path) -> None:
    """Test that drafts are accepted, the text is that without drafts, and the pair and its memory are shown."""
    draft = make_noisy_dir(tiny_dir, tmp_path / "draft", noise=0.1)
    with stage.daemon(
        model={"draft": {"kind": "model", "model": str(draft)}}, policy={"kind": "static", "static_k": 3}
    ) as daemon:
        daemon.ready()
        with daemon.client() as client:
            report = said(client, speculate="auto")
            plain = said(client, speculate="off")
        assert report["text"] == plain["text"]
        assert report["proposers"].keys() == {"model"}
        assert report["accepted"][0] > 0
        assert plain["drafted"] == 0
        status = daemon.status()
        memory = status["engine"]["info"]["memory"]
        assert memory["draft_weights"] > 0
        assert memory["draft_kv"] == memory["kv"]
        assert status["model"]["draft_revision"].startswith("model-")


def said(client: openai.OpenAI, speculate: str) -> dict[str, object]:
    answer = client.completions.create(
        model="tiny",
        prompt="the daemon drafts and the target decides",
        max_tokens=40,
        temperature=0,
        extra_body={"ignore_eos": True, "specd": {"speculate": speculate, "report": True}},
    )
    return {"text": answer.choices[0].text, **answer.model_extra["specd"]}
