"""The admin listener: what it shows, what a reload does, and whom it keeps out."""

import re
import signal
from collections.abc import Iterator

import httpx2
import pytest

from specd.cli import main
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, wait_until


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start(server='allowed_hosts = ["specd.example"]').ready()
    daemons.close()


def complete(daemon: DaemonProcess, **specd: object) -> None:
    body = {"prompt": "ab", "max_tokens": 8, "specd": specd}
    assert daemon.post("/v1/completions", body).status_code == 200


def patch(daemon: DaemonProcess, values: object) -> httpx2.Response:
    return httpx2.patch(daemon.admin + "/admin/v1/config", json=values)


def reload(daemon: DaemonProcess) -> httpx2.Response:
    return httpx2.post(daemon.admin + "/admin/v1/reload")


def test_status_tells_how_things_stand(daemon):
    """Test that status names engine, model, load, KV, acceptance, alerts and config."""
    complete(daemon, k=2, **{"class": "code"})
    status = daemon.status()
    assert status["ready"] is True
    assert status["engine"]["state"] == "ready"
    assert status["engine"]["info"]["model_type"] == "fake"
    assert status["model"]["name"] == "tiny"
    assert len(status["model"]["target_revision"]) == 12
    assert status["model"]["draft_revision"] == "ngram-2-5"
    assert status["load"]["state"] == "full"
    assert status["kv"]["free"] > 0
    assert 0 < status["acceptance"]["code"] < 1
    assert status["alerts"] == {"pending": 0, "firing": 0}
    assert status["config"]["last_reload"]["result"] == "ok"


def test_metrics_count_what_was_done(daemon):
    """Test that rounds, tokens and the pair of revisions are in /metrics."""
    complete(daemon, k=2)
    assert daemon.metric('specd_spec_decode_num_drafts_total{proposer="ngram"}') > 0
    assert daemon.metric('specd_engine_restarts_total{reason="hang"}') == 0
    revision = daemon.status()["model"]["target_revision"]
    assert f'specd_target_info{{draft_revision="ngram-2-5",quantization="none",revision="{revision}"}}' in (
        daemon.get("/metrics").text
    )


def test_decisions_have_their_reasons(daemon):
    """Test that the newest rounds come first, each with k and why, and limit is honoured."""
    complete(daemon, k=3, **{"class": "chat"})
    decisions = daemon.get("/admin/v1/decisions?limit=2").json()["decisions"]
    assert len(decisions) == 2
    assert decisions[0]["step"] > decisions[1]["step"]
    assert (decisions[0]["class"], decisions[0]["k"], decisions[0]["reason"]) == ("chat", 3, "static")
    assert decisions[0]["load_state"] == "full"
    assert daemon.get("/admin/v1/decisions?limit=x").status_code == 400


def test_decisions_of_one_request(daemon):
    """Test that the rounds of a request are found by its id, those of all its texts and of nobody else."""
    body = {"prompt": "ab", "max_tokens": 8, "n": 2, "specd": {"k": 1}}
    request = daemon.post("/v1/completions", body).json()["id"]
    complete(daemon, k=3)
    found = daemon.get(f"/admin/v1/decisions?request={request}").json()["decisions"]
    assert {each["request"] for each in found} == {request, f"{request}#1"}
    assert {each["k"] for each in found} == {1}
    assert daemon.get("/admin/v1/decisions?request=nobody").json() == {"decisions": []}


def test_top_shows_what_is_decided(daemon, capsys):
    """Test that `specd top`, not on a terminal, prints one screen of the daemon as it is."""
    complete(daemon, k=2, **{"class": "code"})
    assert main(["top", "--admin", daemon.admin.removeprefix("http://")]) == 0
    screen = capsys.readouterr().out
    assert re.search(
        r"^running \d+   waiting 0   load full   KV \d+% used   [\d.]+ tokens/s", screen, re.MULTILINE
    )
    assert re.search(r"^code +0\.\d\d +0\.\d\d$", screen, re.MULTILINE)
    assert "(code): k = 2 by ngram; fake: 2" in screen


def test_traffic_classes_stay_few(daemon):
    """Test that classes beyond the 64th are counted together, since each is a label for good."""
    for number in range(70):
        complete(daemon, **{"class": f"made-up-{number}"})
    names = daemon.status()["acceptance"]
    assert len(names) <= 64
    assert "other" in names


def test_alerts_can_be_asked_for(daemon):
    """Test that alerts, receivers and the state of the store are served."""
    store = {"durable": True, "fault": None}
    assert daemon.get("/admin/v1/alerts").json() == {"alerts": [], "receivers": [], "store": store}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "specd.example", "Origin": "https://specd.example"}, 200),
        ({"Host": "rebound.example:8001"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_foreign_pages_are_kept_out(daemon, headers, status):
    """Test that a browser's page under another name, unless that is listed, or of another origin gets nowhere."""
    assert httpx2.get(daemon.admin + "/admin/v1/status", headers=headers).status_code == status


def test_a_good_reload_is_taken_over_and_told(daemons):
    """Test that a hot key reaches the engine at once and the answer, metrics and status tell of it."""
    daemon = daemons.start().ready()
    daemon.config_file.write_text(daemon.config_file.read_text() + "[policy]\nk_max = 1\n")
    answer = reload(daemon)
    change = {"key": "policy.k_max", "old": 8, "new": 1, "kind": "hot"}
    assert answer.json() == {"result": "ok", "changes": [change], "pending": [], "notes": []}
    complete(daemon)
    assert daemon.get("/admin/v1/decisions?limit=1").json()["decisions"][0]["k"] == 1
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 1
    assert daemon.status()["config"]["last_reload"]["trigger"] == "admin"
    assert "policy.k_max: 8 -> 1" in daemon.log


def test_a_restarted_engine_has_the_settings_of_today(daemons):
    """Test that what a reload changed is not lost when the engine is replaced."""
    daemon = daemons.start().ready()
    daemon.config_file.write_text(daemon.config_file.read_text() + "[policy]\nk_max = 1\n")
    assert reload(daemon).status_code == 200
    assert daemon.post("/v1/completions", {"prompt": "<crash>"}).status_code == 503
    complete(daemon)
    assert daemon.get("/admin/v1/decisions?limit=1").json()["decisions"][0]["k"] == 1


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ("[policy]\nk_mx = 1\n", 422, "k_max"),
        ("[policy]\nk_max = 'many'\n", 422, "policy.k_max"),
        ("[engine]\nmax_running = 7\n", 409, "engine.max_running"),
        ("[[alerts.receivers]]\nname = 'r'\nurl = 'http://h/'\nsecret_file = '/nowhere'\n", 422, "/nowhere"),
    ],
)
def test_a_bad_reload_changes_nothing(daemons, lines, status, words):
    """Test that a fault or a restart key gets its sentence, is counted, and the old config stays."""
    daemon = daemons.start().ready()
    before = daemon.get("/admin/v1/config").json()
    daemon.config_file.write_text(daemon.config_file.read_text() + lines)
    answer = reload(daemon)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert daemon.get("/admin/v1/config").json() == before
    assert daemon.metric("specd_config_last_reload_successful") == 0
    assert words in daemon.status()["config"]["last_reload"]["error"]


def test_a_set_key_holds_until_the_next_reload(daemons):
    """Test that hot keys can be set one after the other without touching a file, that the engine drafts by them, and
    that a reload brings back what the file says, although it was never edited.
    """
    daemon = daemons.start("[policy]\nk_max = 5\n").ready()
    change = {"key": "policy.k_max", "old": 5, "new": 1, "kind": "hot"}
    assert patch(daemon, {"policy.k_max": 1, "policy.static_k": 1}).json()["changes"][0] == change
    assert patch(daemon, {"policy": {"prior": 0.3}}).status_code == 200
    complete(daemon)
    assert daemon.get("/admin/v1/decisions?limit=1").json()["decisions"][0]["k"] == 1
    assert daemon.get("/admin/v1/config").json()["set"] == [
        "policy.k_max",
        "policy.prior",
        "policy.static_k",
    ]
    assert daemon.status()["config"]["last_reload"]["trigger"] == "start"
    assert len(reload(daemon).json()["changes"]) == 3
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 5


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        (
            {"policy.k_max": 1, "policy.k_mx": 1},
            422,
            "set: policy.k_mx: unknown key; did you mean policy.k_max?",
        ),
        ({"policy.k_max": "many"}, 422, "set: policy.k_max: must be a whole number, not this text"),
        (
            {"engine.max_running": 7},
            409,
            "engine.max_running can only change with a restart; write it into the",
        ),
        ({"": 1}, 422, "unknown key"),
        ([1], 400, "the body cannot be used"),
    ],
)
def test_what_cannot_be_set_changes_nothing(daemon, values, status, words):
    """Test that all values are taken or none, and each refusal says why; a refused set is no refused reload."""
    before = daemon.get("/admin/v1/config").json()
    answer = patch(daemon, values)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
    assert daemon.get("/admin/v1/config").json() == before
    assert daemon.metric("specd_config_last_reload_successful") == 1


def test_sighup_reloads_and_a_bad_file_is_only_told(daemons):
    """Test that SIGHUP goes the same way: good changes are taken, a fault is logged and counted."""
    daemon = daemons.start().ready()
    good = daemon.config_file.read_text() + "[policy]\nk_max = 2\n"
    daemon.config_file.write_text(good)
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 2, "the reload")
    daemon.config_file.write_text(good + "nonsense = 1\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("specd_config_last_reload_successful") == 0, "the refusal")
    assert "reload by SIGHUP refused, the running config stays" in daemon.log
    complete(daemon)


def test_a_token_guards_admin_but_not_metrics(daemons, tmp_path):
    """Test that /admin wants the token when one is configured, and Prometheus needs none."""
    token = tmp_path / "token"
    token.write_text("letmein\n")
    daemon = daemons.start(admin=f'token_file = "{token}"').ready()
    assert daemon.get("/admin/v1/status").status_code == 401
    with_token = httpx2.get(daemon.admin + "/admin/v1/status", headers={"Authorization": "Bearer letmein"})
    assert with_token.status_code == 200
    assert daemon.get("/metrics").status_code == 200
    assert "letmein" not in daemon.log


def test_admin_on_a_unix_socket(daemons, tmp_path):
    """Test that the listener can be a socket file, which a killed daemon's leftover does not block."""
    path = tmp_path / "admin.sock"
    for ending in (signal.SIGKILL, signal.SIGTERM):
        daemon = daemons.start(admin=f'listen = "unix:{path}"').ready()
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://specd/admin/v1/status").json()["ready"] is True
        daemon.signal(ending)
        daemon.wait()
    assert not path.exists()


def test_drift_is_shown_and_only_what_has_drifted_can_be_accepted(daemon, capsys):
    """Test that `specd drift` lists every class, and that accepting where nothing has happened exits 2."""
    complete(daemon, k=2, **{"class": "code"})
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    assert main(["drift", "show", *admin]) == 0
    assert re.search(
        r"^code \(\w+\), ngram: was \S+ of \d+ requests, is \d\.\d\d$", capsys.readouterr().out, re.MULTILINE
    )
    assert main(["drift", "accept", "--class", "code", *admin]) == 2
    assert "acceptance has not left its baseline there" in capsys.readouterr().err
    bad = httpx2.post(daemon.admin + "/admin/v1/drift/accept", json={"classes": "code"})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_body")
