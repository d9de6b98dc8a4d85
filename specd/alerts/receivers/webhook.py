"""Alertmanager's webhook body, version 4, signed by the Standard Webhooks scheme."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from specd.alerts.lifecycle import Alert, State
from specd.errors import UserError

_PREFIX: Final = "whsec_"
_SHORTEST_KEY: Final = 24
_OPEN_END: Final = "0001-01-01T00:00:00Z"


class SecretError(UserError):
    """A secret file that cannot be used. The message names the file and never quotes it."""


def rfc3339(unix_time: float) -> str:
    """In UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body(receiver: str, alert: Alert) -> bytes:
    """A notification of this one alert: the group is the alert itself."""
    status = "resolved" if alert.state is State.RESOLVED else "firing"
    message = {
        "version": "4",
        "groupKey": f"{{}}:{{{_matchers(alert.labels)}}}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": receiver,
        "groupLabels": alert.labels,
        "commonLabels": alert.labels,
        "commonAnnotations": alert.annotations,
        "externalURL": "",
        "alerts": [_alert(alert, status)],
    }
    return json.dumps(message, ensure_ascii=False).encode()


def _matchers(labels: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(labels.items())
    )


def _alert(alert: Alert, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": _OPEN_END if alert.ends_at is None else rfc3339(alert.ends_at),
        "generatorURL": "",
        "fingerprint": alert.fingerprint,
    }


def headers(message_id: str, unix_time: float, content: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers of one attempt: the id stays over retries, the time is the attempt's.

    One signature per key, so that a receiver may hold the old or the new secret while it is being replaced;
    without keys nothing is signed.
    """
    timestamp = str(int(unix_time))
    found = {"content-type": "application/json", "webhook-id": message_id, "webhook-timestamp": timestamp}
    if keys:
        signed = f"{message_id}.{timestamp}.".encode() + content
        found["webhook-signature"] = " ".join(_signature(key, signed) for key in keys)
    return found


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def read_keys(path: Path | None) -> tuple[bytes, ...]:
    """The signing keys in a secret file, one `whsec_…` a line. Raises `SecretError`."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SecretError(f"the secret file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretError(f"the secret file {path} is not text: it should hold whsec_… lines") from None
    keys = tuple(
        _key(line.strip(), f"line {number} of the secret file {path}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not keys:
        raise SecretError(
            f"the secret file {path} is empty: put {_PREFIX} followed by a key in base64 into it"
        )
    return keys


def _key(text: str, where: str) -> bytes:
    if not text.startswith(_PREFIX):
        raise SecretError(f"{where} does not begin with {_PREFIX}")
    encoded = text.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"{where} is not base64 after {_PREFIX}") from None
    if len(key) < _SHORTEST_KEY:
        raise SecretError(
            f"{where} is a key of {len(key)} bytes: Standard Webhooks asks for at least {_SHORTEST_KEY}"
        )
    return key
