"""Rules and dashboard against the real thing: a daemon's /metrics, promtool, and a Prometheus that scrapes it."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import ROOT, DaemonProcess, wait_until
from tests.test_docs import anchors

DIRECTORY = ROOT / "docs" / "prometheus"
RULES = yaml.safe_load((DIRECTORY / "rules.yml").read_text())
RECORDED = {rule["record"]: rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
DASHBOARD = json.loads((DIRECTORY / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="needs promtool and prometheus, which are in Debian's package prometheus",
)


def expressions() -> dict[str, str]:
    """All that the dashboard asks Prometheus for, by where it stands, with its variables filled in."""
    found = {f"{p['title']} {t['refId']}": t["expr"] for p in PANELS for t in p["targets"]}
    found |= {one["name"]: one["expr"] for one in DASHBOARD["annotations"]["list"]}
    return {
        name: expr.replace("$__rate_interval", "1m").replace("$instance", ".*")
        for name, expr in found.items()
    }


def selectors(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of ours in a PromQL expression, with the labels that it is selected by."""
    for name, matchers in re.findall(r"\b(specd_\w+)(?:\{([^}]*)\})?", expr):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - {"instance", "job"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    """One that has served something."""
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    receiver = '[[alerts.receivers]]\nname = "ops"\nurl = "http://127.0.0.1:9/"\n'
    daemon = daemons.start(receiver).ready()
    serve(daemon)
    yield daemon
    daemons.close()


def serve(daemon: DaemonProcess) -> None:
    body = {"prompt": "ab", "max_tokens": 8, "specd": {"k": 2, "class": "chat"}}
    assert daemon.post("/v1/completions", body).status_code == 200


@pytest.fixture(scope="module")
def exported(daemon) -> dict[str, set[str]]:
    """The labels of every series name in /metrics; of a family without samples, none."""
    text = daemon.get("/metrics").text
    found: dict[str, set[str]] = {name: set() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    for name, labels in re.findall(r"^(specd_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.mark.parametrize("where", ["rules", "dashboard"])
def test_every_metric_exists(exported, where):
    """Test that each series that a rule or a panel asks for is one that the daemon exports, with these labels."""
    asked = (rule["expr"] for rule in [*RECORDED.values(), *ALERTS.values()])
    for expr in asked if where == "rules" else expressions().values():
        for name, labels in selectors(expr):
            assert name in exported, expr
            assert not exported[name] or labels <= exported[name], expr


def test_metrics_that_do_not_exist_are_found(exported):
    """Test that the check above can fail: for a name, and for a label."""
    assert list(selectors('rate(specd_nothing{a="b", instance=~"x"}[5m]) + specd_x')) == [
        ("specd_nothing", {"a"}),
        ("specd_x", set()),
    ]
    assert "specd_nothing" not in exported
    assert not {"nonsense"} <= exported["specd_alerts"]


def test_recorded_series_that_are_shown_are_recorded():
    """Test that the dashboard uses no recording rule that there is not."""
    used = {name for expr in expressions().values() for name in re.findall(r"specd:[\w:]+", expr)}
    assert used
    assert used <= RECORDED.keys()


def promtool(*arguments: object) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_prometheus
def test_promtool_accepts_the_rules_and_their_tests_pass():
    """Test that Prometheus' own checker has nothing to say, and each rule does what its test says."""
    assert "rules found" in promtool("check", "rules", "--lint=all", DIRECTORY / "rules.yml")
    promtool("test", "rules", DIRECTORY / "rules_test.yml")


def test_every_rule_is_tested():
    """Test that each alert is shown to fire, each recording rule to give a number."""
    groups = yaml.safe_load((DIRECTORY / "rules_test.yml").read_text())["tests"]
    fired = {t["alertname"] for g in groups for t in g.get("alert_rule_test", ()) if t["exp_alerts"]}
    queried = " ".join(t["expr"] for g in groups for t in g.get("promql_expr_test", ()))
    assert fired == ALERTS.keys()
    assert {name for name in RECORDED if name in queried} == RECORDED.keys()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_leads_to_its_runbook(alert):
    """Test that the annotation names a page, a heading on it that is the alert's own, and that a severity is set."""
    page, _, heading = ALERTS[alert]["annotations"]["runbook"].partition("#")
    assert (ROOT / page).exists()
    assert not heading or heading in set(anchors((ROOT / page).read_text("utf-8")))
    assert heading in {"", alert.lower()}
    assert ALERTS[alert]["labels"]["severity"] in {"warning", "critical"}


def test_the_dashboard_can_be_imported():
    """Test what Grafana is strict about: ids, places that do not overlap, the data source as a variable everywhere."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    sources = {json.dumps(one["datasource"]) for panel in PANELS for one in (panel, *panel["targets"])}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]
    assert not any(key.startswith("__") for key in DASHBOARD)


class Prometheus:
    """A real one, which scrapes a daemon every quarter of a second."""

    def __init__(self, directory: Path, target: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config = directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}\n"
            f"rule_files: ['{DIRECTORY / 'rules.yml'}']\n"
            f"scrape_configs: [{{job_name: specd, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self._log = directory / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )
        self._http = httpx2.Client(base_url=f"http://{self._address}/api/v1/", timeout=10)

    def get(self, path: str, **parameters: str) -> dict:
        answer = self._http.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict]:
        return self.get("query", query=expr)["result"]

    def up(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        with contextlib.suppress(httpx2.TransportError, ValueError):  # text and no JSON while it starts
            return bool(self.query('count_over_time(up{job="specd"}[1m]) > 3'))
        return False

    def close(self) -> None:
        self._http.close()
        self.process.terminate()
        self.process.wait()


WITHOUT_A_CAUSE = {
    "Target updates": "there was none",
    "Config reloads": "there was none",
    "Acceptance by class, and what it is compared with B": "a baseline takes more requests",
    "Evidence of drift A": "it takes a baseline",
    "Error of predicted step costs A": "the fake engine predicts none",
}
"""What may be empty on the dashboard of a daemon that has only begun to serve."""


@needs_prometheus
def test_a_real_prometheus_fills_the_dashboard(daemon, tmp_path):
    """Test that metrics, recording rules and the queries of panels fit together: none fails, no panel is empty."""
    prometheus = Prometheus(tmp_path, daemon.admin.removeprefix("http://"))
    try:
        wait_until(prometheus.up, "two scrapes")
        serve(daemon)
        wait_until(lambda: prometheus.query("rate(specd_spec_decode_num_drafts_total[1m]) > 0"), "a rate")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not empty(prometheus), "panels to fill")
        assert empty(prometheus) == set()
        health = {
            rule["name"]: rule["health"]
            for group in prometheus.get("rules")["groups"]
            for rule in group["rules"]
        }
        assert set(health.values()) == {"ok"}, health
        firing = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
        assert not firing - {"SpecdFirstTokenRarelyAccepted"}
    finally:
        prometheus.close()


def empty(prometheus: Prometheus) -> set[str]:
    """What shows nothing although it should."""
    return {
        name for name, expr in expressions().items() if not prometheus.query(expr)
    } - WITHOUT_A_CAUSE.keys()
