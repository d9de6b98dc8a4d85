"""`[drift]`: what counts as acceptance that has drifted."""

from pathlib import Path
from typing import Final, Literal

from policies.drift import DriftSettings
from specd.config.section import Section, hot

_DRIFT: Final = DriftSettings()


class RetrainSection(Section):
    """How a head is trained anew, in the background: docs/updates.md."""

    prompts: Path | None = hot(
        None,
        "a file of prompts as `specd draft train` takes it; unset takes those that telemetry.prompts_recorded keeps",
    )
    least_prompts: int = hot(200, "with fewer nothing is trained", ge=1)
    tokens: int = hot(300_000, "of answers to learn from", ge=1)
    minutes: float = hot(45.0, "for the training itself", gt=0)
    limit_minutes: float = hot(480.0, "for all of it, since it runs when nobody else computes", gt=0)
    disk_gb: float = hot(8.0, "that its work may take, in store.directory", gt=0)
    workers: int = hot(1, "processes of one thread each", ge=1)


class DriftSection(Section):
    """When acceptance has drifted from what it was. `docs/drift.md` says how it is decided."""

    learn_requests: int = hot(
        _DRIFT.learn_requests,
        "requests of a class, temperature and proposer before anything is said of them",
        ge=10,
    )
    min_drop: float = hot(
        _DRIFT.min_drop, "a smaller fall of acceptance raises no alert, however sure it is", gt=0, lt=1
    )
    requests_per_false_alarm: float = hot(
        _DRIFT.requests_per_false_alarm,
        "at most one false alarm in so many requests of a class, temperature and proposer, on average. A tenth of it "
        "finds a fall about an eighth sooner",
        ge=100,
    )
    collapse_below: float = hot(
        _DRIFT.collapse_below,
        "acceptance that stays below this is a collapse, with or without a baseline",
        gt=0,
        lt=1,
    )
    loop_above: float = hot(
        _DRIFT.loop_above,
        "acceptance that has risen to this is suspicious: texts that repeat themselves are easy to guess",
        gt=0,
        le=1,
    )
    stale_seconds: float = hot(
        _DRIFT.stale_seconds, "where nothing was examined for so long, nothing is said", gt=0
    )
    after_update: Literal["carry", "learn"] = hot(
        _DRIFT.after_update,
        "carry compares another pair of revisions with what the one before it showed, learn with itself alone",
    )
    on_canary_fail: Literal["alert", "off", "ngram", "retrain", "rollback"] = hot(
        "alert",
        "what follows where the canary finds that a draft has fallen: an alert and no more; its proposer drafts no "
        "longer; prompt lookup drafts in the place of all; a head is trained anew for the target that serves, as "
        "drift.retrain says; or the update is refused, or rolled back where it serves already",
    )
    retrain: RetrainSection = RetrainSection()
    severity: str = hot("warning", "label of the alerts")

    def settings(self) -> DriftSettings:
        """As the detectors take it."""
        return DriftSettings(**{name: getattr(self, name) for name in DriftSettings.__dataclass_fields__})
