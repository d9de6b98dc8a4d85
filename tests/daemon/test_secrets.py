"""Secrets planted wherever the daemon has any, and looked for in all that it tells, writes and keeps."""

import base64
import os
import subprocess
from pathlib import Path

import httpx2

from specd.http.keys import Caller, line_of
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import SPECD, DaemonProcess, wait_until

TOKEN, PLAIN, HASHED = "admin-t0ken-planted", "plain-k3y-planted", "hashed-k3y-planted"
PASSWORD, IN_URL, PROMPT = "mqtt-passw0rd-planted", "url-passw0rd-planted", "my pr0mpt planted"
QUERY, PATH_IN_FILE = "query-s3cret-planted", "file-s3cret-planted"
PATH, NEW_PATH = "path-s3cret-planted", "other-s3cret-planted"
SIGNING = "whsec_" + base64.b64encode(b"webhook-signing-key-planted!").decode()
ENV = "environment-planted"
SECRETS = (TOKEN, PLAIN, HASHED, PASSWORD, IN_URL, QUERY, PATH_IN_FILE, PATH, NEW_PATH, SIGNING, PROMPT, ENV)
BEARER = {"Authorization": f"Bearer {TOKEN}"}

CONFIG = """
[mqtt]
url = "mqtt://127.0.0.1:1"
user = "specd"
password_file = "{password}"
[telemetry]
reports_file = "{reports}"
[[alerts.receivers]]
name = "ops"
url = "http://ops:{in_url}@127.0.0.1:1/hook?key={query}"
secret_file = "{signing}"
[[alerts.receivers]]
name = "chat"
kind = "slack"
url_file = "{url}"
[[alerts.receivers]]
name = "talk"
kind = "slack"
url = "http://127.0.0.1:1/services/{path}"
"""


def planted(daemons: Daemons, directory: Path) -> DaemonProcess:
    texts = {
        "token": TOKEN,
        "keys": f"{PLAIN} name=laptop\n{line_of(HASHED, Caller('acme'))}",
        "password": PASSWORD,
        "signing": SIGNING,
        "url": f"http://127.0.0.1:1/{PATH_IN_FILE}",
    }
    for name, text in texts.items():
        (directory / name).write_text(f"{text}\n")
    extra = CONFIG.format(
        **{name: directory / name for name in ("password", "signing", "url", "reports")},
        in_url=IN_URL,
        query=QUERY,
        path=PATH,
    )
    server, admin = f'api_keys_file = "{directory / "keys"}"', f'token_file = "{directory / "token"}"'
    return daemons.start(extra, server=server, admin=admin, env={"HF_TOKEN": ENV})


def provoke(daemon: DaemonProcess, directory: Path) -> None:
    """Everything that is logged, counted, kept, or told to somebody."""
    for key, prompt in ((PLAIN, PROMPT), (HASHED, PROMPT), (PLAIN + "x", PROMPT), (PLAIN, f"{PROMPT}<fail>")):
        headers = {"Authorization": f"Bearer {key}"}
        body = {"prompt": prompt, "max_tokens": 2, "stop": [PROMPT], "specd": {"class": "a"}}
        daemon.post("/v1/completions", body, headers=headers)
        daemon.post("/v1/completions", {**body, "temprature": PROMPT}, headers=headers)
    daemon.post(
        "/v1/completions", {"prompt": f"{PROMPT}<crash>"}, headers={"Authorization": f"Bearer {PLAIN}"}
    )
    wait_until(lambda: "crash report" in daemon.log, "the crash report")
    admin = f"{daemon.admin}/admin/v1"
    httpx2.post(f"{admin}/alerts/test", json={"wait_seconds": 1}, headers=BEARER)
    edited = (
        daemon.config_file.read_text().replace("[mqtt]", "[mqtt]\nnode = 'other'").replace(PATH, NEW_PATH)
    )
    daemon.config_file.write_text(edited)
    assert httpx2.post(f"{admin}/reload", headers=BEARER).status_code == 200
    (directory / "keys").write_text(f"{PLAIN} {HASHED}\n")
    assert httpx2.post(f"{admin}/reload", headers=BEARER).status_code == 422
    wait_until(lambda: "the keys in force stay" in daemon.log, "the broken file of keys to be noticed")


def happened(daemon: DaemonProcess) -> str:
    """As the dashboard is told."""
    with httpx2.stream("GET", f"{daemon.admin}/admin/v1/events?only=happened", headers=BEARER) as stream:
        return next(line for line in stream.iter_lines() if line.startswith("data:"))


def told(daemon: DaemonProcess) -> dict[str, str]:
    """By where it was read."""
    admin = ("status", "config", "decisions", "target", "alerts", "silences", "crashes")
    found = {path: httpx2.get(f"{daemon.admin}/admin/v1/{path}", headers=BEARER).text for path in admin}
    (crash,) = httpx2.get(f"{daemon.admin}/admin/v1/crashes", headers=BEARER).json()["crashes"]
    path = f"/admin/v1/crashes/{crash['id']}"
    return found | {
        "crash": httpx2.get(daemon.admin + path, headers=BEARER).text,
        "happened": happened(daemon),
        "metrics": daemon.get("/metrics").text,
        "openapi": daemon.get("/openapi.json").text,
        "log": daemon.log,
        "said": daemon.said,
    }


def test_no_secret_leaves_the_place_where_it_was_put(daemons, tmp_path):
    """Test that neither keys, tokens, passwords, signing keys nor prompts are in the log, in what the admin listener
    and /metrics tell, in crash reports, request reports, the store, or what `specd check` prints.
    """
    daemon = planted(daemons, tmp_path).ready()
    provoke(daemon, tmp_path)
    texts = told(daemon)
    assert all(texts.values())
    checked = subprocess.run(
        [SPECD, "check", "-c", daemon.config_file],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    texts["check"] = checked.stdout + checked.stderr
    wait_until((tmp_path / "reports").exists, "the request reports")
    command_line = Path(f"/proc/{daemon.process.pid}/cmdline").read_text()
    kept = [*daemon.config_file.parent.joinpath("state").rglob("*"), tmp_path / "reports"]
    files = {str(file): file.read_bytes().decode("latin-1") for file in kept if file.is_file()}
    assert any("crashes" in name for name in files)
    for where, text in (texts | files | {"cmdline": command_line}).items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} is in {where}"


FORGED = "a\n12:00:00 ERROR specd.daemon: forged\x1b[31m\u2028"


def test_nobody_writes_a_log_line_of_his_own(daemons):
    """Test that control characters in paths, names, tenants, keys and an engine's words make no line of the log."""
    daemons.engine.behave(writes=f"{FORGED}\nERROR specd.engine: {FORGED}\n")
    daemon = daemons.start().ready()
    for body in (
        {"model": FORGED},
        {"user": FORGED},
        {"specd": {"class": FORGED}},
        {FORGED: 1},
        {"prompt": FORGED},
    ):
        daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1} | body)
    daemon.post("/v1/%0A12:00:00%20ERROR%20forged")
    httpx2.post(f"{daemon.admin}/admin/v1/target", json={"path": FORGED})
    httpx2.patch(f"{daemon.admin}/admin/v1/config", json={FORGED: FORGED, "model.target.revision": FORGED})
    daemon.post("/v1/completions", {"prompt": "<crash>", "user": FORGED})
    wait_until(lambda: "crash report" in daemon.log, "the crash report")
    lines = daemon.log.split("\n")
    assert any("forged" in line for line in lines), "what the engine wrote is there"
    assert not any(line.startswith("12:00:00 ERROR") for line in lines)
    assert all(line.isprintable() for line in lines)
