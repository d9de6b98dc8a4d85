"""specd.service under a real systemd, with the fake engine: secrets, users, restarts, faults, drop-ins."""

import json
import signal

import pytest
from standardwebhooks import Webhook

from tests.booted.machine import Machine
from tests.booted.service import DROP_INS, MODEL, Hook, Service, behave, owner
from tests.daemon.daemon_process import ROOT, wait_until

LONG = {"prompt": "abc", "max_tokens": 200, "specd": {"k": 0}}
DYNAMIC = range(61184, 65520)
"""The numbers that systemd gives to users that exist for a while."""

KEY, TOKEN, SECRET = "key-one", "token-one", "whsec_" + "c2VjcmV0" * 4
SECRETS = {"api-keys": f"{KEY}\nkey-two\n", "admin-token": f"{TOKEN}\n", "webhook-secret": f"{SECRET}\n"}
HOOK = {
    "name": "hook",
    "url": "http://127.0.0.1:9009/",
    "secret_file": "$CREDENTIALS_DIRECTORY/webhook-secret",
}


def bearer(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


def test_a_hung_engine_is_replaced_by_the_daemon_and_the_watchdog_waits(service: Service) -> None:
    """Test that where the daemon can help itself, systemd leaves it alone."""
    service.configure(engine={"hang_seconds": 0.5})
    service.drop_in("quick", "[Service]\nWatchdogSec=10s\n")
    service.start()
    main, engine = service.main, service.status()["engine"]["pid"]
    service.kill(engine, signal.SIGSTOP)
    wait_until(lambda: service.status()["engine"]["restarts"] == 1, "another engine")
    wait_until(lambda: service.get("/ready").status_code == 200, "the engine to be ready")
    assert (service.main, service.show("NRestarts"), service.lives(engine)) == (main, "0", False)


def test_a_config_that_is_wrong_is_not_tried_again(service: Service) -> None:
    """Test that a start with a bad config fails with 78, once, and that the journal has the sentence."""
    service.configure(policy={"k_max": -1})
    assert service.systemctl("start").returncode != 0
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("78", "0")
    assert service.show("ActiveState") == "failed"
    assert "policy.k_max" in service.log()


def test_a_reload_that_loads_for_long_is_waited_for(service: Service) -> None:
    """Test that `systemctl reload` ends well though another target takes longer to load than TimeoutStartSec."""
    service.drop_in("quick", "[Service]\nWatchdogSec=3s\n")
    service.start()
    service.drop_in("short", "[Service]\nTimeoutStartSec=4s\n")
    behave(service.machine, load_seconds=6)
    service.configure(model={"target": {"path": MODEL, "revision": "b"}})
    done = service.systemctl("reload")
    assert done.returncode == 0, f"{done.stderr}{service.log()}"
    assert service.status()["model"]["target_revision"] == "b"
    assert (service.show("ActiveState"), service.show("NRestarts")) == ("active", "0")


def test_credentials_open_the_doors_and_sign_the_webhooks(service: Service, hook: Hook) -> None:
    """Test that the drop-in hands three secrets to the service, out of files that its user cannot read, and that
    reloads go through the door that one of them closes."""
    for name, text in SECRETS.items():
        service.machine.write(f"/etc/specd/secrets/{name}", text, 0o600)
    service.configure(
        server={"api_keys_file": "$CREDENTIALS_DIRECTORY/api-keys"},
        admin={"token_file": "$CREDENTIALS_DIRECTORY/admin-token"},
        alerts={"receivers": [HOOK]},
    )
    service.shipped_drop_in("credentials")
    service.start()
    assert service.post("/v1/completions", json=LONG).status_code == 401
    assert service.says("abc", **bearer("key-two")) == "abc"
    assert service.get("/admin/v1/status").status_code == 401
    assert service.get("/admin/v1/status", **bearer(TOKEN)).status_code == 200
    assert service.systemctl("reload").returncode == 0, service.log()
    in_a_shell = {"CREDENTIALS_DIRECTORY": f"/run/credentials/{service.name}.service"}
    assert service.machine.run("specd", "status", env=in_a_shell).returncode == 0
    service.post("/admin/v1/alerts/test", json={"wait_seconds": 0}, **bearer(TOKEN))
    headers, body = hook.first()
    assert Webhook(SECRET).verify(body, headers)["alerts"]
    stolen = (
        "setpriv",
        f"--reuid={service.show('UID')}",
        "--clear-groups",
        "cat",
        "/etc/specd/secrets/api-keys",
    )
    assert "Permission denied" in service.machine.run(*stolen).stderr
    assert not any(secret in service.log() for secret in (KEY, TOKEN, SECRET))


def test_what_everybody_may_know_is_set_in_the_unit(service: Service, hook: Hook) -> None:
    """Test the drop-in's example of a credential that is no secret, as the comment has it."""
    (example,) = [
        line[1:] for line in (DROP_INS / "credentials.conf").read_text().splitlines() if "#Set" in line
    ]
    receiver = {"name": "hook", "url_file": "$CREDENTIALS_DIRECTORY/webhook-url"}
    service.configure(alerts={"receivers": [receiver]})
    service.drop_in("url", f"[Service]\n{example}\n")
    service.start()
    service.post("/admin/v1/alerts/test", json={"wait_seconds": 0})
    assert json.loads(hook.first()[1])["status"] == "firing"


def test_alerts_on_their_way_and_baselines_outlive_a_restart(service: Service) -> None:
    """Test that an alert that nobody took before a restart arrives after it, and that detectors know what they knew."""
    service.configure(
        drift={"learn_requests": 10}, alerts={"receivers": [{"name": "hook", "url": HOOK["url"]}]}
    )
    service.start()
    answers = [
        service.ask("POST", "/v1/completions", json={"prompt": "abc", "max_tokens": 20}) for _ in range(16)
    ]
    assert {answer.result().status_code for answer in answers} == {200}
    told = service.post("/admin/v1/alerts/test", json={"wait_seconds": 0, "labels": {"mark": "before"}})
    assert told.status_code == 200
    learned = service.series("specd_acceptance_baseline{")
    assert [value for value in learned.values() if value != "NaN"]
    assert service.series("specd_webhook_outbox") != {"specd_webhook_outbox": "0.0"}
    assert service.systemctl("restart").returncode == 0
    assert service.series("specd_acceptance_baseline{") == learned
    hook = Hook(service.machine, 9009)
    try:
        message = json.loads(hook.first()[1])
        assert message["alerts"][0]["labels"].get("mark") == "before", message
    finally:
        hook.close()


def test_its_user_exists_while_it_runs_and_sees_little(service: Service) -> None:
    """Test DynamicUser and the sandbox: whose the state is, what cannot be written, and whose home is not seen."""
    service.start()
    main, machine = service.main, service.machine
    uid = owner(machine.at(f"/proc/{main}"))
    state = machine.at("/var/lib/private/specd")
    assert uid in DYNAMIC
    assert (owner(state), state.stat().st_mode & 0o777) == (uid, 0o700)
    assert (state / "alerts.db").exists()
    seen = machine.at(f"/proc/{main}/root")
    assert list((seen / "root").iterdir()) == []
    for file in (service.config_file, "/usr/bin/specd"):
        with pytest.raises(OSError, match="Read-only"):
            (seen / file.removeprefix("/")).write_text("")
    service.systemctl("stop")
    assert machine.run("getent", "passwd", "specd").returncode != 0


def test_a_user_that_stays_can_be_had(service: Service) -> None:
    """Test sysusers file and drop-in: the service has the user of that name, and its state lies where it seems to."""
    machine: Machine = service.machine
    machine.write("/usr/lib/sysusers.d/specd.conf", (ROOT / "systemd/specd.sysusers").read_text())
    machine.succeed("systemd-sysusers", "specd.conf")
    service.shipped_drop_in("static-user")
    service.start()
    uid = int(machine.succeed("id", "-u", "specd"))
    assert owner(machine.at(f"/proc/{service.main}")) == uid
    assert owner(machine.at("/var/lib/specd")) == uid
    assert not machine.at("/var/lib/specd").is_symlink()
    service.systemctl("stop")
    machine.at("/etc/passwd").write_text(without(machine.at("/etc/passwd").read_text()))
    machine.at("/etc/group").write_text(without(machine.at("/etc/group").read_text()))


def without(table: str) -> str:
    return "".join(line for line in table.splitlines(keepends=True) if not line.startswith("specd:"))


def test_the_other_drop_ins_let_it_serve(service: Service) -> None:
    """Test that nothing that cpu.conf and hardened.conf take away is needed to serve and to keep state."""
    service.shipped_drop_in("cpu")
    service.shipped_drop_in("hardened")
    service.start()
    assert service.says("abc") == "abc"
    assert service.machine.at("/var/lib/private/specd/alerts.db").exists()
