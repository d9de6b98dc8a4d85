"""A draft that is ruined while the text stays right: acceptance falls, and the alarm goes off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.alert_receiver import AlertReceiver, Received, alert_receiver
from tests.scenarios.crowd import Crowd, seen
from tests.scenarios.stage import RealDaemon, Stage

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RULE = {
    "class": "*",
    "below": 0.5,
    "for_seconds": 1.0,
    "window_seconds": 2.0,
    "min_examined": 20,
    "keep_seconds": 1.0,
}
BODY = {
    "prompt": "the daemon drafts",
    "max_tokens": 60,
    "temperature": 0.0,
    "ignore_eos": True,
    "specd": {"class": "chat", "report": True},
}
DELIVERED = 'specd_webhook_deliveries_total{outcome="delivered",receiver="ops"}'
NEARLY_ALL = [0, 1, 2]  # of 4 layers


@pytest.fixture
async def receiver() -> Iterator[AlertReceiver]:
    async with alert_receiver() as receiver:
        yield receiver


@pytest.fixture
def daemon(stage: Stage, receiver: AlertReceiver, tmp_path: Path) -> Iterator[RealDaemon]:
    """Drafts with the whole of the target, so all is accepted at first. The draft's name does not tell its layers,
    as when weights are replaced in place."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    draft = {"kind": "layer-skip", "skip_layers": [], "revision": "d1"}
    ops = {"name": "ops", "url": receiver.url, "secret_file": str(secret)}
    with stage.daemon(
        model={"draft": draft},
        policy={"kind": "static", "static_k": 2, "k_max": 2},
        alerts={"rules": [RULE], "receivers": [ops]},
    ) as daemon:
        yield daemon.ready()


def text(daemon: RealDaemon) -> str:
    return daemon.post("/v1/completions", BODY).json()["choices"][0]["text"]


def told(message: Received) -> dict:
    """The one alert of a message, once its signature was accepted."""
    (alert,) = message.verified(SECRET)["alerts"]
    return alert


async def test_ruined_draft_raises_the_alarm(daemon: RealDaemon, receiver: AlertReceiver) -> None:
    """Test that skipping nearly all layers fires one signed webhook though every text stays the same, and that
    drafting well again resolves it."""
    async with Crowd(daemon.url, **BODY) as crowd:
        await crowd.resize(2)
        await seen(lambda: daemon.status()["acceptance"] == {"chat": 1.0}, "perfect acceptance")
        right = text(daemon)
        daemon.write(model={"draft": {"skip_layers": NEARLY_ALL}})
        assert daemon.reload().stdout == f"model.draft.skip_layers: [] -> {NEARLY_ALL} (hot)\n"
        await seen(lambda: receiver.received, "the alarm")
        assert daemon.metrics()['specd_alerts{name="SpecdAcceptanceCollapse",state="firing"}'] == 1
        assert daemon.metrics()['specd_acceptance{class="chat"}'] < 0.7
        assert text(daemon) == right
        daemon.write()
        assert daemon.reload().returncode == 0
        await seen(lambda: len(receiver.received) == 2, "the all-clear")
        assert text(daemon) == right
        assert crowd.served(1)
    firing, resolved = map(told, receiver.received)
    assert (firing["status"], resolved["status"]) == ("firing", "resolved")
    assert firing["labels"] == resolved["labels"]
    told_of = {"alertname": "SpecdAcceptanceCollapse", "class": "chat", "proposer": "layer-skip"}
    assert told_of.items() <= firing["labels"].items()
    assert firing["labels"]["draft_revision"] == "d1"
    assert firing["annotations"]["summary"].startswith(
        "Acceptance of class chat, drafted by layer-skip, is 0."
    )
    await seen(lambda: daemon.metrics()[DELIVERED] == 2, "both deliveries to be counted")
    assert not [alert for alert in daemon.get("/admin/v1/alerts").json()["alerts"] if alert["endsAt"] is None]
