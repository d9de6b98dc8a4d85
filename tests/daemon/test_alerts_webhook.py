"""The body and the signature of a webhook, and the files that hold its secrets."""

import base64
import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from specd.alerts.lifecycle import Alert, State, fingerprint
from specd.alerts.receivers.secrets import SecretError
from specd.alerts.receivers.webhook import body, headers, read_keys
from specd.alerts.store import Content, Message
from specd.config.alerts import ReceiverSection

LABELS = {"alertname": "SpecdAcceptanceCollapse", "class": 'a "b"', "severity": "warning"}
ALERT = Alert(
    fingerprint(LABELS), "floor", LABELS, {"summary": "s", "description": "ü"}, State.FIRING, 1764430000.25
)
SECTION = ReceiverSection(name="ops", url="http://ops", group_by=())
KEYS = (b"0123456789abcdef01234567", b"another key of more than 24 bytes")
SECRETS = tuple("whsec_" + base64.b64encode(key).decode() for key in KEYS)


def message(*alerts):
    return Message("msg_1", "ops", Content(alerts), attempt=1)


def test_an_open_alert_has_every_field_of_alertmanagers_version_4():
    """Exactly those fields, with the version a string and an end that says "open"."""
    assert json.loads(body(SECTION, message(ALERT))) == {
        "version": "4",
        "groupKey": '{}:{alertname="SpecdAcceptanceCollapse", class="a \\"b\\"", severity="warning"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "ops",
        "groupLabels": LABELS,
        "commonLabels": LABELS,
        "commonAnnotations": ALERT.annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": "firing",
                "labels": LABELS,
                "annotations": ALERT.annotations,
                "startsAt": "2025-11-29T15:26:40.250Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": ALERT.fingerprint,
            }
        ],
    }


def test_a_resolved_alert_has_its_end():
    """Both statuses say resolved and endsAt is when it ended."""
    ended = Alert(ALERT.fingerprint, "floor", LABELS, {}, State.RESOLVED, 1764430000.0, ends_at=1764430060.0)
    sent = json.loads(body(SECTION, message(ended)))
    assert (sent["status"], sent["alerts"][0]["status"]) == ("resolved", "resolved")
    assert sent["alerts"][0]["endsAt"] == "2025-11-29T15:27:40.000Z"


def test_either_secret_verifies_while_one_replaces_the_other():
    """One signature per key, each accepted by the package of the Standard Webhooks project."""
    content = body(SECTION, message(ALERT))
    sent = headers("msg_1", time.time(), content, KEYS)
    for secret in SECRETS:
        assert Webhook(secret).verify(content, sent)["receiver"] == "ops"
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + base64.b64encode(b"not the key at all, sorry").decode()).verify(content, sent)


@pytest.mark.parametrize("change", [{"webhook-id": "msg_2"}, {"webhook-timestamp": "1"}, {}])
def test_what_is_signed_cannot_be_changed(change):
    """Id, time and body are all under the signature."""
    content = body(SECTION, message(ALERT))
    sent = headers("msg_1", time.time(), content, KEYS) | change
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify(content if change else content + b" ", sent)


def test_without_a_secret_nothing_is_signed():
    """Id and time are still there, a signature is not."""
    assert set(headers("msg_1", 1.0, b"{}", ())) == {"content-type", "webhook-id", "webhook-timestamp"}
    assert read_keys(None) == ()


def test_a_secret_file_holds_one_key_a_line(tmp_path):
    """Blank lines and missing padding are forgiven."""
    file = tmp_path / "secret"
    file.write_text(f"\n{SECRETS[0].rstrip('=')}  \n\n{SECRETS[1].rstrip('=')}\n")
    assert read_keys(file) == KEYS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hunter2hunter2", "line 1 of the secret file .* does not begin with whsec_"),
        (b"whsec_hunter2*", "is not base64"),
        (b"whsec_aHVudGVyMg==", "is a key of 7 bytes"),
        (SECRETS[0].encode() + b"\nhunter2", "line 2 of"),
        (b"\xff\xfe\x00hunter2", "is not text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_secret_file_is_a_sentence_that_does_not_quote_it(tmp_path, content, says):
    """The message names the file and the line, never what stands there."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretError, match=says) as caught:
        read_keys(file)
    assert str(file) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "aHVudGVyMg" not in str(caught.value)
