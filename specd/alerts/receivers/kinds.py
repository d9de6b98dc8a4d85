"""The kinds of receivers: what each makes of a message, and what it can take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2

from specd.alerts.receivers import alertmanager, pagerduty, slack, webhook
from specd.alerts.receivers.base import Post, Target
from specd.alerts.receivers.secrets import one_line
from specd.alerts.store import Message
from specd.config.alerts import ReceiverKind, ReceiverSection
from specd.errors import UserError


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to tell."""

    post: Callable[[Target, Message, float], Post] | None
    """Makes the attempt of a moment; None for what is not sent over HTTP."""
    alone: bool = False
    """Each alert needs a message of its own."""
    takes_events: bool = False
    """It is also told of target updates."""


KINDS: Final[dict[ReceiverKind, Kind]] = {
    "webhook": Kind(webhook.post),
    "alertmanager": Kind(alertmanager.post),
    "slack": Kind(slack.post),
    "pagerduty": Kind(pagerduty.post, alone=True, takes_events=True),
    "mqtt": Kind(None, alone=True),
}


def usable(section: ReceiverSection) -> Target:
    """The receiver with what its files hold. Raises `UserError` when it cannot be used."""
    try:
        return Target(section, _url(section), _keys(section))
    except httpx2.InvalidURL as error:
        raise UserError(f"receiver {section.name}: its url is not one: {error}") from None
    except UserError as error:
        raise UserError(f"receiver {section.name}: {error}") from None


def _url(section: ReceiverSection) -> str:
    url = one_line(section.url_file) if section.url_file else section.url
    if section.kind == "pagerduty":
        url = url or pagerduty.ROOT
    if url and httpx2.URL(url).scheme not in {"http", "https"}:
        raise UserError("its url does not begin with http:// or https://")
    return url


def _keys(section: ReceiverSection) -> tuple[bytes, ...]:
    if section.kind == "webhook":
        return webhook.read_keys(section.secret_file)
    return () if section.secret_file is None else (one_line(section.secret_file).encode(),)
