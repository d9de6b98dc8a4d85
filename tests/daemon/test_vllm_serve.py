"""`engine.backend = "vllm-serve"`: the daemon beside a vLLM that others run. A test speaks for its scheduler here."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import (
    Configure,
    Foreign,
    Output,
    PhaseSeconds,
    RequestReport,
    Round,
    StepReport,
)
from engine.vllm.link import Link
from specd.config.layers import load
from specd.errors import ConfigError
from tests.daemon.conftest import write_served_model
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.meeting import beside_vllm
from tests.messages import a_ready, a_report

HELLO = a_ready(model_path="as vLLM calls it")
AGAIN = structs.replace(HELLO, proposers=("eagle3",))
REPORT = RequestReport(
    rounds=1,
    drafted=3,
    examined=[1, 1],
    accepted=[1, 0],
    k_histogram={3: 1},
    proposers={"ngram": 1},
    prompt_tokens=4,
    tokens=9,
)


def a_step(number: int, *outputs: Output) -> StepReport:
    one = Round("of-others", "code", "ngram", 3, 3, 2, 1, "acceptance", "why")
    phases = PhaseSeconds(schedule=0.001, draft=0.0, verify=0.01, commit=0.001)
    return a_report(number, phases=phases, rows=4, committed=2, rounds=[one], outputs=list(outputs))


class Beside:
    """A daemon, and where vLLM's scheduler is to meet it."""

    def __init__(self, daemon: DaemonProcess, meeting: Path, reports: Path) -> None:
        self.daemon = daemon
        self.meeting = meeting
        self.reports = reports

    def link(self) -> Link:
        """Of a scheduler that has found the daemon."""
        wait_until(self.meeting.exists, "the socket")
        link = Link(str(self.meeting), HELLO)
        assert link.is_connected
        return link


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    model = write_served_model(tmp_path / "tiny")
    with beside_vllm(tmp_path, model, "start_seconds = 0.01") as met:
        yield Beside(*met)


def current(daemon: DaemonProcess) -> dict:
    return daemon.get("/admin/v1/target").json()["current"]


def orders(link: Link) -> list[Configure]:
    found = wait_until(link.received, "orders")
    assert all(isinstance(one, Configure) for one in found)
    return found


def test_a_server_of_others_is_looked_after(beside: Beside) -> None:
    """Test that the daemon counts what vLLM's scheduler reports, tells of requests that never came to it, hands its
    policy over, takes no requests and no updates itself, and notices that vLLM has gone and that it is back, and what
    drafts in it then. It waits for vLLM beyond any limit for a start.
    """
    link, daemon = beside.link(), beside.daemon
    assert orders(link)[0].policy.k_max == 8
    daemon.ready()
    foreign = Foreign(traffic_class="code", tenant="somebody", temperature=0.0)
    link.send(a_step(1))
    link.send(a_step(2, Output(id="of-others", tokens=[], finish="length", report=REPORT, foreign=foreign)))
    drafted = 'specd_spec_decode_num_draft_tokens_total{proposer="ngram"}'
    wait_until(lambda: daemon.metric(drafted) == 6.0, "two rounds of three tokens")
    assert (
        daemon.metric('specd_spec_decode_num_examined_tokens_per_pos_total{position="1",proposer="ngram"}')
        == 2.0
    )
    line = json.loads(wait_until(lambda: beside.reports.exists() and beside.reports.read_text(), "a report"))
    assert (line["request"], line["class"], line["tenant"]) == ("of-others", "code", "somebody")
    assert (line["examined"], line["accepted"], line["tokens"]) == ([2, 2], [2, 0], 9)

    assert current(daemon)["draft_revision"] == "ngram", (
        "as vLLM's method, and not as [model.draft] would have it"
    )
    update = daemon._http.post(daemon.admin + "/admin/v1/target", json={"path": "/other"})
    assert update.status_code == 422
    assert "vLLM is run by others here" in update.json()["error"]["message"]

    refused = daemon.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert refused.status_code == 400
    assert "send requests to vLLM itself" in refused.json()["error"]["message"]

    daemon._http.patch(daemon.admin + "/admin/v1/config", json={"policy.k_max": 3}).raise_for_status()
    assert orders(link)[-1].policy.k_max == 3

    link.close()
    wait_until(lambda: daemon.status()["engine"]["restarts"] == 1, "that vLLM has gone")
    wait_until(beside.meeting.exists, "the socket again")
    link = wait_until(
        lambda: (found := Link(str(beside.meeting), AGAIN)).is_connected and found, "vLLM again"
    )
    assert orders(link)[0].policy.k_max == 3
    wait_until(lambda: daemon.status()["engine"]["state"] == "ready", "that it is back")
    assert current(daemon)["draft_revision"] == "eagle3"
    assert current(daemon)["proposers"] == ["eagle3"]
    assert daemon.metric('specd_spec_decode_num_drafts_total{proposer="eagle3"}') == 0.0
    link.close()


def test_where_vllm_is_met_has_to_be_said(tmp_path: Path) -> None:
    file = tmp_path / "specd.toml"
    file.write_text('[engine]\nbackend = "vllm-serve"\n')
    with pytest.raises(ConfigError, match=r"name a path with engine\.vllm\.socket"):
        load(file, env={})
