"""`specd demo`: its update, its webhook, and its whole story against real processes and a fake engine."""

import asyncio
import base64
import hashlib
import hmac
import io
import json
import time
from functools import partial
from pathlib import Path

import httpx2
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from specd.bench.client import connect
from specd.cli import main
from specd.cli.admin import Admin
from specd.demo import picture
from specd.demo.crowd import Crowd
from specd.demo.daemon import running
from specd.demo.hook import Notice, hook
from specd.demo.looks import Look, Looker
from specd.demo.reordered import reordered
from specd.demo.screen import Lines, spark, squeezed, summary
from specd.demo.story import Mark, Pace, Phase, Story, Told
from tests.daemon.conftest import Daemons
from tests.daemon.test_target_updates import other_model
from tests.tiny import make_model_dir

TOKENS = torch.tensor([[5, 90, 17, 200, 41, 8, 77]])
HURRIED = Pace(clients=(1, 3), phase=0.8, after_update=0.1, after_repair=0.1, patience=20)


def read(directory: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and last hidden state."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        out = model(TOKENS, output_hidden_states=True)
    return out.logits, out.hidden_states[-1]


def test_the_update_changes_what_a_head_reads_and_not_what_is_said(tmp_path):
    """Test that logits stay but for rounding, while the hidden units are the old ones in another order."""
    model = make_model_dir(tmp_path / "model")
    logits, hidden = read(model)
    same_logits, other_hidden = read(reordered(model, tmp_path / "other"))
    torch.testing.assert_close(same_logits, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(other_hidden.sort().values, hidden.sort().values, atol=1e-4, rtol=1e-4)
    assert (other_hidden - hidden).abs().mean() > 0.1 * hidden.abs().mean()


async def posted(url: str, body: bytes, secret: bytes) -> None:
    signed = b"m-1.1764430000." + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    headers = {
        "webhook-id": "m-1",
        "webhook-timestamp": "1764430000",
        "webhook-signature": f"v1,{signature}",
    }
    async with httpx2.AsyncClient() as client:
        assert (await client.post(url, content=body, headers=headers)).status_code == 204


async def test_the_webhook_tells_genuine_notices_from_others():
    """Test that each alert of a message is told, with whether its signature is right."""
    alert = {"labels": {"alertname": "A"}, "annotations": {"summary": "it fell"}, "status": "firing"}
    body = json.dumps({"alerts": [alert, alert | {"status": "resolved"}]}).encode()
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    async with hook(notices) as there:
        await posted(there.url, body, base64.b64decode(there.secret.removeprefix("whsec_")))
        await posted(there.url, body, b"another secret")
    told = [notices.get_nowait() for _ in range(notices.qsize())]
    assert [(one.status, one.genuine) for one in told] == [
        ("firing", True),
        ("resolved", True),
        ("firing", False),
        ("resolved", False),
    ]


METRICS = """\
# TYPE specd_draft_length histogram
specd_draft_length_bucket{{le="+Inf",proposer="ngram"}} {rounds}
specd_draft_length_count{{proposer="ngram"}} {rounds}
specd_draft_length_sum{{proposer="ngram"}} {levels}
# TYPE specd_time_to_first_token_seconds histogram
specd_time_to_first_token_seconds_count 3
# TYPE specd_inter_token_seconds histogram
specd_inter_token_seconds_count {rounds}
# TYPE specd_spec_decode_num_examined_tokens_per_pos_total counter
specd_spec_decode_num_examined_tokens_per_pos_total{{position="1",proposer="ngram"}} {examined}
specd_spec_decode_num_examined_tokens_per_pos_total{{position="2",proposer="ngram"}} 99
# TYPE specd_spec_decode_num_accepted_tokens_per_pos_total counter
specd_spec_decode_num_accepted_tokens_per_pos_total{{position="1",proposer="ngram"}} {accepted}
"""
STATUS = {"load": {"running": 2, "state": "shrunk"}}


def test_looks_tell_of_the_last_seconds():
    """Test that k and acceptance are of what was counted since a few seconds ago, not since the start."""
    looker = Looker()
    first = METRICS.format(rounds=1000, levels=8000, examined=1000, accepted=1000)
    later = METRICS.format(rounds=1010, levels=8020, examined=1004, accepted=1001)
    assert looker.look(0.0, STATUS, first).k is None
    look = looker.look(1.0, STATUS, later)
    assert (look.k, look.acceptance, look.load, look.running) == (2.0, {"ngram": 0.25}, "shrunk", 2)
    assert (look.tokens, look.tokens_per_second) == (1013, 10.0)
    assert looker.look(20.0, STATUS, later).acceptance == {}


@pytest.fixture
def story_daemons(tmp_path):
    daemons = Daemons(tmp_path)
    daemons.engine.behave(poor_model="poor", max_context=4096)
    yield daemons
    daemons.close()


def configured(folder: Path, url: str, secret: str) -> str:
    """TOML: the webhook, and a canary of few prompts."""
    (folder / "secret").write_text(secret)
    prompts = [{"prompt": f"Say the number {number} in words."} for number in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    return (
        f"[canary]\nprompts = {json.dumps(str(folder / 'prompts.jsonl'))}\ntokens = 40\n"
        f'[[alerts.receivers]]\nname = "demo"\nurl = {json.dumps(url)}\ngroup_wait_seconds = 0\n'
        f"secret_file = {json.dumps(str(folder / 'secret'))}\n"
    )


async def test_the_story_is_told_to_its_end(story_daemons, tmp_path):
    """Test that the ramp is shown phase by phase, that the update is found out, delivered, rolled back and resolved, in
    that order and without a chat that failed, and that the daemon is left with its own target."""
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    out = io.StringIO()
    async with hook(notices) as there:
        process = story_daemons.start(configured(tmp_path, there.url, there.secret)).ready()
        admin = Admin(process.admin.removeprefix("http://"), None)
        async with running(process.url, admin) as daemon, connect(daemon.url, None, None, 16) as server:
            told = await Story(
                daemon,
                Crowd(server),
                Lines(Console(file=out, width=80)),
                ruin=partial(other_model, tmp_path / "poor"),
                pace=HURRIED,
                began=time.monotonic(),
                notices=notices,
            ).run()
        assert (await asyncio.to_thread(process.get, "/admin/v1/target")).json()["current"]["path"] == str(
            story_daemons.model
        )
    order = ["update asked for", "firing", "firing delivered", "rollback", "resolved delivered"]
    moments = [told.when(name) for name in order]
    assert None not in moments, out.getvalue()
    assert moments[0] < min(moments[1:3]) < moments[3] < moments[4]
    assert [(phase.clients, phase.k) for phase in told.phases] == [(1, 8.0), (3, 8.0)]
    assert told.answers > 8
    assert told.failures == 0
    text = out.getvalue()
    assert "canary: ngram" in text
    assert "webhook: SpecdAcceptanceDrift (canary) firing, signature good" in text
    assert "\x1b" not in text


def test_half_a_daemon_is_refused(capsys):
    """Test that an admin listener alone is not taken for a daemon to drive."""
    assert main(["demo", "--admin", "127.0.0.1:1"]) == 2
    assert "name both" in capsys.readouterr().err


TOLD = Told(
    looks=[
        Look(0.0, 1, "full", 0, 80.0, 4.0, {"eagle": 0.5}),
        Look(0.5, 16, "off", 300, 600.0, 0.0, {}),
        Look(1.0, 2, "full", 370, 140.0, None, {"eagle": 0.6, "ngram": 0.9}),
    ],
    phases=[
        Phase(1, 4.0, "full", 80.0, {"eagle": 0.5}),
        Phase(16, None, "off", 600.0, {}),
        Phase(2, 4.0, "full", 140.0, {"eagle": 0.6, "ngram": 0.9}),
    ],
    marks=[Mark(0.6, "update"), Mark(0.7, "firing"), Mark(0.8, "firing delivered"), Mark(0.9, "rollback")],
    answers=40,
    same_words=(38, 40),
)


def test_the_summary_fits_80_columns_and_says_what_did_not_happen():
    """Test that nothing is cut off or wrapped, and that an end that did not come is said."""
    console = Console(file=io.StringIO(), width=80)
    console.print(*summary(TOLD), sep="\n")
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "Updated: the webhook came 0.2 s later." in text
    assert "Rolled back: the webhook came not while the demo looked." in text
    assert "…" not in text


def test_charts_leave_out_what_is_not_known():
    """Test that the highest value is a whole block unless another is, 0 the lowest one, and nothing a space; and that
    all values find room."""
    assert spark([0.0, None, 4.0, 8.0]) == "▁ ▅█"
    assert spark([0.5, 2.0], most=1.0) == "▅█"
    assert squeezed([1.0, 3.0, None, 5.0, None, None, 7.0], 4) == [2.0, 5.0, None, 7.0]
    assert squeezed([1.0, 2.0], 4) == [1.0, 2.0]


def test_the_picture_is_drawn(tmp_path):
    """Test that it is a picture, also of a demo in which nothing was delivered."""
    for name, told in (("all.png", TOLD), ("none.png", Told(looks=TOLD.looks))):
        picture.draw(told, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
