"""What is told of the daemon, and when it is worth telling again. Pure.

Numbers about requests only: no text of a prompt or an answer is ever here to be told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ACCEPTANCE_MOVED: Final = 0.05
_K_MOVED: Final = 1.0
_MOST_ALERTS: Final = 32
_MOVING: Final = frozenset({"time", "k", "acceptance", "running", "waiting", "tokens_per_second"})
"""Of the state: what is another number at almost every look."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the retained topics hold."""

    state: dict[str, Any]
    target: dict[str, Any]

    def same_state(self, other: "Told") -> bool:
        """Whether nothing has changed that anybody waits for: noise, and the number of requests, are no news."""
        if _steady(self.state) != _steady(other.state):
            return False
        return _near(self.state["k"], other.state["k"], _K_MOVED) and _alike(
            self.state["acceptance"], other.state["acceptance"]
        )


def told_of(
    status: Mapping[str, Any], alerts: Sequence[Mapping[str, Any]], target: Mapping[str, Any], now: float
) -> Told:
    """Out of what the admin listener has at `status`, `alerts` and `target`; `now` in Unix seconds."""
    model, load, drafts = status["model"], status["load"], status["drafts"]
    pair = {key: model[key] for key in ("name", "target_revision", "draft_revision", "quantization")}
    state = {
        "time": round(now, 3),
        "version": status["version"],
        "ready": status["ready"],
        "unready_because": status["unready_because"],
        "load": load["state"],
        "running": load["running"],
        "waiting": load["waiting"],
        "tokens_per_second": drafts["tokens_per_second"],
        "k": _mean_length(drafts["k"]),
        "acceptance": status["acceptance"],
        **{key: pair[key] for key in ("target_revision", "draft_revision")},
        "doing": target["doing"],
        "refused": _refused(target["last"]),
        "alerts": status["alerts"],
        "firing": [_firing(alert) for alert in alerts if alert["state"] == "firing"][:_MOST_ALERTS],
        "config": status["config"]["hash"],
    }
    return Told(state, {**pair, "changed": target["changed"]})


def _refused(last: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The last change of the target, where it came to nothing."""
    if last is None or last["ok"]:
        return None
    return {"unix_time": last["unix_time"], "text": last["text"]}


def _firing(alert: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: alert[key] for key in ("name", "fingerprint", "startsAt")},
        "class": alert["labels"].get("class"),
        "summary": alert["annotations"].get("summary", ""),
    }


def _mean_length(lengths: Mapping[str, Mapping[int, int]]) -> float | None:
    """Of the k of the last rounds, whoever was to draft."""
    counts = [(k, count) for by_k in lengths.values() for k, count in by_k.items()]
    rounds = sum(count for _, count in counts)
    return round(sum(k * count for k, count in counts) / rounds, 2) if rounds else None


def _steady(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in _MOVING}


def _near(old: float | None, new: float | None, moved: float) -> bool:
    return old is new if old is None or new is None else abs(new - old) < moved


def _alike(old: Mapping[str, float | None], new: Mapping[str, float | None]) -> bool:
    return old.keys() == new.keys() and all(_near(old[name], new[name], _ACCEPTANCE_MOVED) for name in old)
