"""specd@.service: several models on a host, each with its own daemon."""

import pytest

from tests.booted.machine import Machine
from tests.booted.service import Service
from tests.daemon.daemon_process import wait_until


@pytest.fixture
def both(machine: Machine) -> tuple[Service, Service]:
    small, large = Service(machine, "specd@small"), Service(machine, "specd@large", port=8010)
    small.configure(policy={"k_max": 2})
    large.configure(policy={"k_max": 5})
    return small, large


def test_instances_have_nothing_in_common_but_the_target(both: tuple[Service, Service]) -> None:
    """Test that two instances serve at once by their own configs, keep state apart, reload apart, and end together."""
    small, large = both
    small.machine.succeed("systemctl", "enable", "--now", "specd@small", "specd@large")
    assert (small.says("abc"), large.says("xyz")) == ("abc", "xyz")
    small.configure(policy={"k_max": 3})
    assert small.systemctl("reload").returncode == 0
    found = [one.get("/admin/v1/config").json()["config"]["policy"]["k_max"] for one in both]
    assert found == [3, 5]
    for one in both:
        directory = one.name.replace("@", "-")
        assert one.show("StateDirectory") == directory
        assert one.machine.at(f"/var/lib/private/{directory}/alerts.db").exists()
    small.machine.succeed("systemctl", "stop", "specd.target")
    for one in both:
        wait_until(lambda one=one: one.show("ActiveState") == "inactive", f"{one.name} to end")
    small.machine.succeed("systemctl", "start", "specd.target")
    for one in both:
        wait_until(lambda one=one: one.show("ActiveState") == "active", f"{one.name} to be back")
    small.machine.succeed("systemctl", "disable", "--now", "specd@small", "specd@large")


def test_shared_fragments_reach_every_instance(both: tuple[Service, Service]) -> None:
    """Test that what lies in /etc/specd/conf.d holds for all, and specd.toml for none of them."""
    both[0].machine.write("/etc/specd/conf.d/limits.toml", "[server]\nmax_queue = 7\n")
    both[0].machine.write("/etc/specd/specd.toml", "[server]\nmax_queue = 1\n")
    for one in both:
        one.start()
        assert one.get("/admin/v1/config").json()["config"]["server"]["max_queue"] == 7
