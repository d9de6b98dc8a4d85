import os
import socket

from specd.notify import Notifier


def test_without_a_service_manager_nothing_is_sent(caplog):
    """Test that a notifier without an address is silent and has no watchdog."""
    notifier = Notifier.from_environment({})
    notifier.ready()
    assert (notifier.listens, notifier.watchdog_seconds, caplog.records) == (False, None, [])


def test_the_variables_are_taken_out_of_the_environment():
    """Test that the engine, which inherits the environment, cannot speak for the daemon."""
    environ = {"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environment(environ)
    assert (notifier.watchdog_seconds, environ) == (3.0, {"A": "b"})


def test_a_watchdog_of_another_process_is_not_ours():
    """Test that WATCHDOG_PID is honoured."""
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"})
    assert notifier.watchdog_seconds is None


def test_messages_reach_an_abstract_socket():
    """Test that an address with @ means Linux's abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        name = f"specd-test-{os.getpid()}"
        systemd.bind(f"\0{name}")
        Notifier(f"@{name}").extend(1.5)
        assert systemd.recv(100) == b"EXTEND_TIMEOUT_USEC=1500000"


def test_a_manager_that_has_gone_is_only_a_warning(caplog):
    """Test that a vanished socket does not hurt the daemon."""
    Notifier("/nowhere/notify").ready()
    assert "systemd cannot be told READY" in caplog.text
