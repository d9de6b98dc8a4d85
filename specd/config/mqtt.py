"""`[mqtt]`: state, alerts and commands over a broker."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from specd.config.files import SecretFile
from specd.config.section import Section, hot

Verb = Literal["reload", "set", "target", "silence"]

FLEET = "all"
"""Stands for every node in the topics of commands."""


class MqttSection(Section):
    """State, alerts and commands over an MQTT 5 broker."""

    url: str = hot("", "mqtt://host:1883, or mqtts://host:8883 for TLS; empty: no MQTT")
    node: str = hot(
        "", "this daemon in the topics; no two daemons may have the same. Empty takes the host's name"
    )
    prefix: str = hot("specd", "the levels before the node in all topics")
    user: str = hot("", "user at the broker; empty: none")
    password_file: SecretFile | None = hot(None, "file with the user's password on its first line")
    ca_file: SecretFile | None = hot(
        None, "certificates to check the broker's by; unset takes those that the system trusts"
    )
    cert_file: SecretFile | None = hot(None, "certificate to show to the broker, with key_file")
    key_file: SecretFile | None = hot(None, "key of cert_file")
    commands: tuple[Verb, ...] = hot(
        (), "commands that are obeyed: reload, set, target, silence. Empty: none is even listened for"
    )
    fleet: bool = hot(
        True, "listen to what the other nodes below the prefix tell of themselves, for the dashboard"
    )
    state_seconds: float = hot(300.0, "the state is told when it changes, and at least this often", gt=0)
    keepalive_seconds: int = hot(
        20, "a broker that is silent for twice as long is left and tried again", ge=1, le=65535
    )
    timeout_seconds: float = hot(10.0, "longest wait for an answer of the broker", gt=0)

    @field_validator("url")
    @classmethod
    def _broker(cls, url: str) -> str:
        if url and (fault := _url_fault(url)):
            raise ValueError(f"{fault}: write mqtt://host:1883 or mqtts://host:8883")
        return url

    @field_validator("node", "prefix")
    @classmethod
    def _levels(cls, text: str) -> str:
        if any(letter in "+#\0" or letter.isspace() for letter in text) or text.startswith("$"):
            raise ValueError("no topic may have it: leave out +, #, spaces and a $ at its beginning")
        return text

    @field_validator("node")
    @classmethod
    def _one_level(cls, node: str) -> str:
        if node == FLEET or "/" in node:
            raise ValueError(
                f'it must be one level, without /, and not "{FLEET}", which stands for every node'
            )
        return node

    @field_validator("prefix")
    @classmethod
    def _prefix_levels(cls, prefix: str) -> str:
        if not prefix or "" in prefix.split("/"):
            raise ValueError("it must be one level, or several with / between them")
        return prefix

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.password_file is not None and not self.user:
            raise ValueError("password_file is of no use without user: set it, too")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: set both or none")
        if not self.url.startswith("mqtts:") and (self.ca_file or self.cert_file):
            raise ValueError("ca_file and cert_file need a url that begins with mqtts://")
        return self


def _url_fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return "its port is none"
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or not has_port:
        return "it names no broker"
    if parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
        return "it says more than scheme, host and port (user and password_file have their own keys)"
    return None
