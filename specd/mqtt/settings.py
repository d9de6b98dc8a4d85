"""The `[mqtt]` section with the files that it names read: all that a connection needs."""

import hashlib
import platform
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from specd.config.mqtt import MqttSection
from specd.errors import UserError
from specd.mqtt.topics import Topics

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal if nothing changed, in the files neither."""

    section: MqttSection
    topics: Topics
    client_id: str
    password: str | None = field(repr=False)
    certificates: tuple[bytes, ...] = field(repr=False)
    """The files' contents; for the comparison alone."""
    tls: ssl.SSLContext | None = field(compare=False)

    @property
    def host(self) -> str:
        """Of the broker."""
        return urlsplit(self.section.url).hostname or ""

    @property
    def port(self) -> int:
        """Of the broker."""
        parts = urlsplit(self.section.url)
        return parts.port or _PORTS[parts.scheme]


def read_settings(section: MqttSection, instance: str) -> Settings | None:
    """None where there is no broker. Raises `UserError` when a file cannot be used.

    `instance` tells this daemon from others on the host: a client id that is used twice makes two clients throw each
    other out for ever.
    """
    if not section.url:
        return None
    host = platform.node()
    topics = Topics(section.prefix, section.node or _level(host))
    digest = hashlib.sha256(f"{host}\n{instance}".encode()).hexdigest()[:8]
    return Settings(
        section=section,
        topics=topics,
        client_id=f"specd-{topics.node}-{digest}",
        password=_password(section.password_file),
        certificates=tuple(
            _read(path, key)
            for path, key in (
                (section.ca_file, "mqtt.ca_file"),
                (section.cert_file, "mqtt.cert_file"),
                (section.key_file, "mqtt.key_file"),
            )
            if path is not None
        ),
        tls=_tls(section) if section.url.startswith("mqtts:") else None,
    )


def _level(host: str) -> str:
    return re.sub(r"[^\w.-]", "-", host) or "specd"


def _read(path: Path, key: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read: {error.strerror}") from None


def _password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        lines = _read(path, "mqtt.password_file").decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(
            f"mqtt.password_file: {path} is not text: put the password on its first line"
        ) from None
    if not lines or not lines[0]:
        raise UserError(f"mqtt.password_file: {path} is empty: put the password on its first line")
    return lines[0]


def _tls(section: MqttSection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=section.ca_file and section.ca_file.expanduser())
    except ssl.SSLError as error:
        raise UserError(f"mqtt.ca_file: {section.ca_file} holds no certificates: {error.reason}") from None
    if section.cert_file is not None and section.key_file is not None:
        try:
            # An encrypted key would make OpenSSL ask for its passphrase on the terminal.
            context.load_cert_chain(
                section.cert_file.expanduser(), section.key_file.expanduser(), password=""
            )
        except (ssl.SSLError, OSError) as error:
            raise UserError(
                f"mqtt.cert_file and mqtt.key_file: {section.cert_file} and {section.key_file} are no certificate"
                f" with its key, or the key has a passphrase: {error}"
            ) from None
    return context
