"""One booted machine for all tests of a run, clean for each of them."""

from collections.abc import Iterator

import pytest

from tests.booted.machine import Machine, booted, unavailable_reason
from tests.booted.service import FAKE, Hook, Service, clear, install

UNITS = ("specd", "specd@small", "specd@large")


@pytest.fixture(scope="session")
def bare_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with booted(tmp_path_factory.mktemp("machine")) as machine:
        install(machine, FAKE)
        yield machine


@pytest.fixture
def machine(bare_machine: Machine) -> Iterator[Machine]:
    clear(bare_machine, UNITS)
    yield bare_machine
    clear(bare_machine, UNITS)


@pytest.fixture
def service(machine: Machine) -> Service:
    service = Service(machine)
    service.configure()
    return service


@pytest.fixture
def hook(machine: Machine) -> Iterator[Hook]:
    hook = Hook(machine, 9009)
    yield hook
    hook.close()
