"""specd.service under a real systemd, with the fake engine: the life of the service. `make test-systemd` has more."""

import signal
from concurrent.futures import wait

from tests.booted.service import Service, behave
from tests.daemon.daemon_process import wait_until

LONG = {"prompt": "abc", "max_tokens": 200, "specd": {"k": 0}}


def k_max(service: Service) -> int:
    return service.get("/admin/v1/config").json()["config"]["policy"]["k_max"]


def test_ready_is_said_when_the_engine_steps_and_stop_waits_for_answers(service: Service) -> None:
    """Test that the unit is starting as long as the model loads, though the daemon answers; and that `systemctl stop`
    lets the request that runs have all of its text, and leaves nothing behind."""
    behave(service.machine, keep_loading="/opt/loading", step_seconds=0.005)
    service.machine.write("/opt/loading", "")
    service.systemctl("start", "--no-block")
    wait_until(service.answers, "an answer")
    wait_until(lambda: "loading: reading" in service.show("StatusText"), "the status")
    assert service.get("/ready").status_code == 503
    assert service.show("ActiveState") == "activating"
    service.machine.at("/opt/loading").unlink()
    wait_until(lambda: service.show("ActiveState") == "active", "the unit to be active")
    assert service.get("/ready").status_code == 200
    main, engine = service.main, service.status()["engine"]["pid"]
    open_request = service.ask("POST", "/v1/completions", json=LONG)
    wait_until(lambda: open_request.done() or service.status()["load"]["running"], "the request to run")
    assert not open_request.done()
    assert service.systemctl("stop").returncode == 0
    wait([open_request])
    assert open_request.result().json()["usage"]["completion_tokens"] == 200
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert not service.lives(main)
    assert not service.lives(engine)
    assert "draining: 1 open requests" in service.log()


def test_reload_takes_over_a_good_config_and_refuses_a_bad_one(service: Service) -> None:
    """Test that `systemctl reload` fails where the config is refused, that the old one stays in force, and that the
    journal has the reason; a restart is not needed to go on."""
    service.configure(policy={"k_max": 2})
    service.start()
    before = service.main
    service.configure(policy={"k_max": 3})
    assert service.systemctl("reload").returncode == 0
    assert k_max(service) == 3
    service.configure(policy={"k_maxx": 5})
    assert service.systemctl("reload").returncode != 0
    assert (k_max(service), service.show("ActiveState"), service.main) == (3, "active", before)
    assert "policy.k_maxx: unknown key; did you mean policy.k_max?" in service.log("--priority=err")
    service.configure(policy={"k_max": 4})
    assert service.systemctl("reload").returncode == 0
    assert k_max(service) == 4


def test_the_watchdog_ends_a_daemon_that_cannot_help_itself(service: Service) -> None:
    """Test that systemd restarts daemon and engine where the engine hangs and the daemon waits too long."""
    service.configure(engine={"hang_seconds": 1000.0})
    service.drop_in("quick", "[Service]\nWatchdogSec=2s\nRestartSec=10ms\n")
    service.start()
    main, engine = service.main, service.status()["engine"]["pid"]
    service.kill(engine, signal.SIGSTOP)
    wait_until(lambda: service.show("NRestarts") != "0", "a restart")
    wait_until(lambda: service.show("ActiveState") == "active", "the unit to be active again")
    assert not service.lives(main)
    assert not service.lives(engine)
    assert "Watchdog timeout" in service.log()
    assert service.says("abc") == "abc"
