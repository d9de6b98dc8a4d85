"""Secrets that systemd hands to the service, as the config names them."""

from pathlib import Path

import pytest

from specd.config.layers import load
from specd.config.schema import Config

TOML = """
[server]
api_keys_file = "$CREDENTIALS_DIRECTORY/a"
[admin]
token_file = "$CREDENTIALS_DIRECTORY/b"
[[alerts.receivers]]
name = "hook"
url_file = "$CREDENTIALS_DIRECTORY/c"
secret_file = "$CREDENTIALS_DIRECTORY/d"
[mqtt]
url = "mqtts://broker"
user = "specd"
password_file = "$CREDENTIALS_DIRECTORY/e"
cert_file = "$CREDENTIALS_DIRECTORY/f"
key_file = "/etc/specd/$CREDENTIALS_DIRECTORY/g"
"""


def files(config: Config) -> list[str]:
    (receiver,), mqtt = config.alerts.receivers, config.mqtt
    found = [config.server.api_keys_file, config.admin.token_file, receiver.url_file, receiver.secret_file]
    return list(map(str, [*found, mqtt.password_file, mqtt.cert_file, mqtt.key_file]))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "specd.toml"
    file.write_text(TOML)
    return file


def test_a_credential_is_where_systemd_put_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that each key that names a secret may begin with the variable, which is one only at the beginning."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/specd.service")
    found = files(load(config, env={}).config)
    assert found[:-1] == [f"/run/credentials/specd.service/{name}" for name in "abcdef"]
    assert found[-1] == "/etc/specd/$CREDENTIALS_DIRECTORY/g"


def test_outside_of_the_service_the_config_can_be_read_all_the_same(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a path stays as it is written where there is no such directory, for the message that it is missing."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert files(load(config, env={}).config)[0] == "$CREDENTIALS_DIRECTORY/a"
