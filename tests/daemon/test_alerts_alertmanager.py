"""Alerts at a real Alertmanager."""

import contextlib
import os
import shutil
import socket
import subprocess
import time

import httpx2
import pytest

from specd.alerts.delivery import Deliveries
from specd.alerts.durable import DurableStore
from specd.alerts.lifecycle import Alert, State
from specd.alerts.store import Changes
from specd.alerts.telling import Notice
from specd.config.alerts import ReceiverSection
from specd.telemetry.alarm import AlarmMetrics
from tests.daemon.conftest import until
from tests.daemon.daemon_process import wait_until

PROGRAM = shutil.which("prometheus-alertmanager", path=f"{os.environ['PATH']}:/usr/sbin")

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs Alertmanager, which is in Debian's package prometheus-alertmanager"
)

LABELS = {
    "alertname": "SpecdAcceptanceDrift",
    "class": "chat",
    "severity": "warning",
    "target_revision": "t2",
}


def answers(url):
    with contextlib.suppress(httpx2.TransportError):
        return httpx2.get(f"{url}/-/ready").status_code == 200
    return False


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory):
    """The URL of one that tells nobody."""
    directory = tmp_path_factory.mktemp("alertmanager")
    config = directory / "config.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={config}", f"--storage.path={directory}", f"--web.listen-address={address}"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([PROGRAM, *options, "--cluster.listen-address="], stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(f"http://{address}"), "Alertmanager")
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


async def test_an_alertmanager_shows_what_fires_until_it_ends(alertmanager):
    """Labels and annotations as they were given, the start too; once it is over, it is no longer active there."""
    section = ReceiverSection(name="am", kind="alertmanager", url=alertmanager, group_wait_seconds=0)
    deliveries = Deliveries([section], AlarmMetrics(), DurableStore(None))
    deliveries.start()
    began = time.time() - 5
    texts = {"summary": "Acceptance fell", "suspected_cause": "target update"}
    firing = Alert("f1", "drift", LABELS, texts, State.FIRING, began)

    def shown():
        return httpx2.get(f"{alertmanager}/api/v2/alerts").json()

    deliveries.put(Changes(), [Notice("am", firing)])
    await until(shown)
    (one,) = shown()
    assert (one["labels"], one["annotations"], one["status"]["state"]) == (LABELS, texts, "active")
    ended = Alert("f1", "drift", LABELS, texts, State.RESOLVED, began, time.time())
    deliveries.put(Changes(), [Notice("am", ended)])
    await until(lambda: not shown())
    await deliveries.aclose(5)
