"""The sections of the alarm."""

from typing import Literal, Self

from pydantic import ConfigDict, model_validator

from specd.config.files import SecretFile
from specd.config.section import Section, hot

ReceiverKind = Literal["webhook", "alertmanager", "slack", "pagerduty", "mqtt"]


class RuleSection(Section):
    """An alert rule: the examined acceptance of a class stays under a floor for a time."""

    name: Literal["SpecdAcceptanceCollapse"] = hot("SpecdAcceptanceCollapse", "the alert's name")
    traffic_class: str = hot("*", 'the class watched; "*" watches each class on its own', alias="class")
    below: float = hot(..., "the floor for examined acceptance at position 1", gt=0, le=1)
    fine_above: float | None = hot(
        None, "acceptance from which on it is fine again; unset takes the floor and a tenth more", gt=0, le=1
    )
    for_seconds: float = hot(60.0, "how long it must stay under the floor", ge=0)
    keep_seconds: float = hot(
        30.0, "how long it must be fine before the alert is over; doubled each time it fires again", ge=0
    )
    window_seconds: float = hot(300.0, "acceptance is taken over this long", gt=0)
    min_examined: int = hot(20, "examined drafts in the window below which nothing is said", ge=1)
    severity: str = hot("warning", "label of the alert")

    model_config = ConfigDict(populate_by_name=True)

    @property
    def fine_from(self) -> float:
        """From here on it is fine: the floor itself is where acceptance wavers."""
        return min(1.1 * self.below, 1.0) if self.fine_above is None else self.fine_above

    @model_validator(mode="after")
    def _marks(self) -> Self:
        if self.fine_above is not None and self.fine_above < self.below:
            raise ValueError(
                f"fine_above = {self.fine_above} is under the floor, below = {self.below}: raise it, or unset it"
            )
        return self


class ReceiverSection(Section):
    """Where alerts go."""

    name: str = hot(..., "name in metrics and logs", min_length=1)
    kind: ReceiverKind = hot(
        "webhook",
        "webhook: Alertmanager's body, signed by Standard Webhooks; alertmanager: the v2 API of one; slack: an "
        "incoming webhook; pagerduty: Events v2; mqtt: the broker of [mqtt]",
    )
    url: str = hot(
        "",
        "http(s) URL that takes the POST; of an Alertmanager, its root; pagerduty has one of its own; mqtt has none",
        pattern=r"^(https?://.*)?$",
    )
    url_file: SecretFile | None = hot(None, "file with the URL, where that is the secret, as Slack's is")
    secret_file: SecretFile | None = hot(
        None,
        "webhook: file with the signing secret, whsec_…, without which nothing is signed; alertmanager: with a bearer "
        "token; pagerduty: with the routing key",
    )
    private_addresses: bool = hot(True, "whether the URL may lead to loopback or a private network")
    timeout_seconds: float = hot(10.0, "an attempt that takes longer has failed", gt=0)
    max_attempts: int = hot(0, "attempts before a notification is given up; 0 never gives up", ge=0)
    send_resolved: bool = hot(True, "also tell when an alert is over")
    repeat_seconds: float | None = hot(
        None,
        "an alert that still fires is told again after so long, 0 never; unset: 4 h, alertmanager 60 s",
        ge=0,
    )
    group_by: tuple[str, ...] = hot(
        ("alertname", "target_revision", "draft_revision"),
        "alerts that agree in these labels come in one message; empty sends each alone, as pagerduty and mqtt do "
        "anyway",
    )
    group_wait_seconds: float = hot(2.0, "how long a message waits for others of its group", ge=0)

    @property
    def repeats_after(self) -> float:
        """Seconds; 0 for never. An Alertmanager forgets what it is not told again."""
        if self.repeat_seconds is not None:
            return self.repeat_seconds
        return 60.0 if self.kind == "alertmanager" else 4 * 3600.0

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind in {"webhook", "alertmanager", "slack"} and not (self.url or self.url_file):
            raise ValueError(f"a receiver of kind {self.kind} needs a url, or a url_file that holds it")
        if self.kind == "mqtt" and (self.url or self.url_file or self.secret_file):
            raise ValueError("a receiver of kind mqtt goes by the broker of [mqtt]: leave url and files out")
        if self.url and self.url_file:
            raise ValueError("url and url_file both say where it is: unset one")
        if self.kind == "pagerduty" and self.secret_file is None:
            raise ValueError("a receiver of kind pagerduty needs a secret_file with the routing key")
        if self.kind == "alertmanager" and self.repeat_seconds == 0:
            raise ValueError("an Alertmanager forgets what it is not told again: set repeat_seconds above 0")
        return self


class AlertsSection(Section):
    """Rules and receivers."""

    rules: tuple[RuleSection, ...] = hot((RuleSection(below=0.2),), "alert rules")
    receivers: tuple[ReceiverSection, ...] = hot((), "receivers")
    update_grace_seconds: float = hot(
        120.0,
        "after an announced target update, rules of acceptance under a floor tell nobody for so long; what still fires "
        "then is told as not recovered",
        ge=0,
    )
    runbook_url: str = hot(
        "docs/alerts.md",
        "where the runbooks are: the page in the package, or a URL that you host it at; alerts add their part by #",
    )

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [receiver.name for receiver in self.receivers]
        if len(set(names)) < len(names):
            raise ValueError(f"receivers need different names, these are {names}")
        return self

    @model_validator(mode="after")
    def _unique_rules(self) -> Self:
        watched = [(rule.name, rule.traffic_class, rule.severity) for rule in self.rules]
        for name, traffic_class, severity in watched:
            if watched.count((name, traffic_class, severity)) > 1:
                raise ValueError(
                    f'two rules {name} watch class "{traffic_class}" with severity "{severity}":'
                    " keep one, or give them different severities"
                )
        return self


def refused_when_set(new: AlertsSection, old: AlertsSection) -> tuple[str, ...]:
    """Why these receivers may not be put in force by whoever can set keys of the running daemon, a sentence each.

    Such a one is trusted less than the config file is: it may lead the daemon neither to where only this host can go,
    nor to what is in the files of this host. Receivers that are in force already may stay.
    """
    added = [receiver for receiver in new.receivers if receiver not in old.receivers]
    private = (
        f"alerts.receivers: {one.name} may lead to private addresses: set private_addresses = false, or write it into"
        " the config file"
        for one in added
        if one.private_addresses and one.kind != "mqtt"
    )
    files = (
        f"alerts.receivers: {one.name} names a file of this host: leave url_file and secret_file out, or write it into"
        " the config file"
        for one in added
        if one.url_file or one.secret_file
    )
    return (*private, *files)
