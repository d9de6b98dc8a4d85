"""Where the daemon keeps what must outlive it."""

from pathlib import Path

import pytest

from specd.config.store import StoreSection
from specd.store import store_dir

ENV = {
    "SPECD_STATE_DIR": "/own",
    "STATE_DIRECTORY": "/var/lib/specd:/var/lib/more",
    "XDG_STATE_HOME": "/home/a/.state",
}


@pytest.mark.parametrize(
    ("without", "directory"),
    [
        ((), "/own"),
        (("SPECD_STATE_DIR",), "/var/lib/specd"),
        (("SPECD_STATE_DIR", "STATE_DIRECTORY"), "/home/a/.state/specd"),
        (tuple(ENV), str(Path.home() / ".local/state/specd")),
    ],
)
def test_the_first_that_is_set_wins(without, directory):
    """Its own variable, systemd's, the user's, or the place that all have."""
    assert store_dir(StoreSection(), {k: v for k, v in ENV.items() if k not in without}) == Path(directory)


def test_the_config_beats_the_environment():
    """It is the one that says so in the log of a reload."""
    assert store_dir(StoreSection(directory="~/alerts"), ENV) == Path.home() / "alerts"
