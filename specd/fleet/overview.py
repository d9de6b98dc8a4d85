"""What a fleet comes to: which update there was, who has taken it, and whose word is old. Pure.

The update of a model is the newest one that stands: of the nodes that serve what an update brought, and have not gone
back from it, the one that was updated last. Every other node that serves a model of the same name has taken it if it
serves the same revision, whichever way it came by that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from specd.fleet.fleet import Fleet, Node

Standing = Literal["serving", "not ready", "offline", "unknown"]

_LATE: Final = 30.0
"""Seconds after twice the time within which a state is told again: then it is old."""


class Update(NamedTuple):
    """Of the nodes that serve one model."""

    revision: str
    unix_time: float | None
    """None where it is asked for by name."""
    node: str | None
    """Who took it last."""


def overview(fleet: Fleet, now: float, wanted: str | None = None) -> dict[str, Any]:
    """As a document. now: Unix seconds. wanted: the revision that all are to serve, whatever they say of updates."""
    nodes = fleet.nodes()
    updates = last_updates(nodes) if wanted is None else _asked_for(nodes, wanted)
    return {
        "prefix": fleet.prefix,
        "crowded": fleet.crowded,
        "revisions": _revisions(nodes),
        "updates": [_as_document(model, update, nodes) for model, update in sorted(updates.items())],
        "nodes": [_node(node, updates, now) for node in nodes],
    }


def last_updates(nodes: Iterable[Node]) -> dict[str, Update]:
    """By the model's name; of a model that nobody was updated to, nothing."""
    found: dict[str, Update] = {}
    for node in nodes:
        target = node.target
        if target is None or target.target_revision is None or target.changed is None:
            continue
        before, at = found.get(target.name), target.changed.unix_time
        newer = before is None or before.unix_time is None or at > before.unix_time
        if target.changed.by == "update" and newer:
            found[target.name] = Update(target.target_revision, at, node.name)
    return found


def taken(node: Node, updates: Mapping[str, Update]) -> bool | None:
    """Whether it serves what it should; None where there is nothing that it should, or it has not said."""
    target = node.target
    if target is None or target.target_revision is None or target.name not in updates:
        return None
    return target.target_revision == updates[target.name].revision


def complete(document: Mapping[str, Any]) -> bool:
    """Whether every node that is there serves, what it should, and is not about to serve something else."""
    there = [node for node in document["nodes"] if node["online"]]
    return bool(there) and all(
        node["standing"] == "serving" and node["taken"] is not False and node["doing"] is None
        for node in there
    )


def _asked_for(nodes: Iterable[Node], revision: str) -> dict[str, Update]:
    names = {node.target.name for node in nodes if node.target is not None}
    return {name: Update(revision, None, None) for name in names}


def _as_document(model: str, update: Update, nodes: Sequence[Node]) -> dict[str, Any]:
    there = [node for node in nodes if node.online and node.target is not None and node.target.name == model]
    of_it = {model: update}
    return {
        "model": model,
        "revision": update.revision,
        "unix_time": update.unix_time,
        "node": update.node,
        "online": len(there),
        "taken": sum(taken(node, of_it) is True for node in there),
    }


def _revisions(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """What those serve that are there, the most frequent first."""
    counts = Counter(
        (node.target.name, node.target.target_revision)
        for node in nodes
        if node.online and node.target is not None and node.target.target_revision is not None
    )
    return [
        {"model": model, "revision": revision, "nodes": count}
        for (model, revision), count in counts.most_common()
    ]


def _node(node: Node, updates: Mapping[str, Update], now: float) -> dict[str, Any]:
    state, target = node.state, node.target
    said = {} if state is None else msgspec.to_builtins(state)
    return {
        "node": node.name,
        "online": node.online,
        "standing": _standing(node),
        "told_at": node.told_at,
        "stale": _stale(node, now),
        "faults": list(node.faults),
        "model": None if target is None else target.name,
        "target_revision": None if target is None else target.target_revision,
        "draft_revision": None if target is None else target.draft_revision,
        "quantization": None if target is None else target.quantization,
        "changed": None if target is None else msgspec.to_builtins(target.changed),
        "taken": taken(node, updates),
        **{name: said.get(name) for name in _SAID},
    }


_SAID: Final = (
    "version",
    "unready_because",
    "load",
    "running",
    "waiting",
    "tokens_per_second",
    "k",
    "acceptance",
    "doing",
    "refused",
    "alerts",
    "firing",
    "config",
)
"""Of a node's state, as it says it; None where it says nothing."""


def _standing(node: Node) -> Standing:
    if node.online is False:
        return "offline"
    if node.online is None or node.state is None:
        return "unknown"
    return "serving" if node.state.ready else "not ready"


def _stale(node: Node, now: float) -> bool:
    """Whether it has said nothing for so long that it should have, while it is there."""
    if not node.online or node.state is None or node.told_at is None:
        return False
    return now - node.told_at > 2 * node.state.state_seconds + _LATE
