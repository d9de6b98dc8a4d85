"""An encoder-decoder model behind a real daemon."""

from pathlib import Path

import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM

from tests.scenarios.stage import Stage
from tests.tiny_t5 import make_t5_dir

PROMPT = "the daemon drafts and the target decides"


def greedy(path: Path, prompt: str, tokens: int) -> str:
    """As transformers writes it."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return tokenizer.decode(out[0, 1:].tolist())


def test_completions_of_an_encoder_decoder_model(stage: Stage, tmp_path: Path) -> None:
    """Test that the text is transformers' own, streamed or whole, and that what there cannot be is refused."""
    path = make_t5_dir(tmp_path / "t5", "t5-v1.1")
    small = make_t5_dir(tmp_path / "small", "t5-v1.1", noise=0.01)
    draft = {"kind": ["ngram", "model"], "model": str(small)}
    with stage.daemon(
        model={"target": {"path": str(path)}, "draft": draft}, policy={"kind": "static", "static_k": 3}
    ) as daemon:
        daemon.ready()
        info = daemon.status()["engine"]["info"]
        assert (info["model_type"], info["encodes"], info["max_context"]) == ("t5", True, 1024)
        asked = {
            "model": "tiny",
            "prompt": PROMPT,
            "max_tokens": 20,
            "temperature": 0,
            "extra_body": {"ignore_eos": True, "specd": {"report": True}},
        }
        with daemon.client() as client:
            answer = client.completions.create(**asked)
            stream = client.completions.create(**asked, stream=True)
            pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
            with pytest.raises(openai.BadRequestError, match="no chat template: use /v1/completions"):
                client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": PROMPT}])
            with pytest.raises(openai.BadRequestError, match="read by an encoder"):
                client.completions.create(**{**asked, "extra_body": {"prompt_logprobs": 1}})
        assert answer.choices[0].text == "".join(pieces) == greedy(path, PROMPT, 20)
        assert answer.model_extra["specd"]["proposers"]["model"] > 0
