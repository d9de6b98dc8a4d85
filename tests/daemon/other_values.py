"""For every key of the config a config in which it has another value, so that tests walk the whole schema."""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from specd.config.layers import merge
from specd.config.paths import known_keys, names, section_at
from specd.config.sources import nested

Table = dict[str, Any]

ARRAYS: Final[dict[str, Table]] = {
    "alerts.rules": {"below": 0.3},
    "alerts.receivers": {"name": "hook", "url": "http://127.0.0.1:9/"},
    "policy.tenants": {"name": "somebody", "k_max": 5},
    "observe": {"name": "peer", "url": "http://127.0.0.1:9"},
    "server.limits": {"tenant": "somebody", "requests": 5},
}
"""Arrays of tables, each with an entry that is complete. A change in an entry is one of the array."""

INSTEAD_OF: Final = {"url_file": "url", "key": "tenant"}
"""Keys of entries, and which other one cannot stand beside them."""

ONE_VALUE: Final = {"alerts.rules.name"}
"""There is no other value."""

BESIDE: Final[dict[str, Table]] = {
    "policy.objective": {"policy": {"kind": "goodput", "latency_ms": 50.0}},
    "policy.load.resume_at": {"policy": {"load": {"off_above": 9}}},
    "mqtt.password_file": {"mqtt": {"user": "me"}},
    "mqtt.ca_file": {"mqtt": {"url": "mqtts://127.0.0.1:9"}},
}
"""What has to stand beside a key."""


def changes(directory: Path) -> dict[str, tuple[Table, Table, str]]:
    """By key: the sections before and after, and the key that is then told as changed. Files are in `directory`."""
    return {key: _change(key, directory) for key in known_keys() if key not in ONE_VALUE}


def _change(key: str, directory: Path) -> tuple[Table, Table, str]:
    array, _, name = key.rpartition(".")
    if array in ARRAYS:
        return _in_entry(array, name, _other(key, directory))
    if key in {"mqtt.cert_file", "mqtt.key_file"}:
        return _pair(key, directory)
    before = BESIDE.get(key, {})
    return before, merge([before, nested(tuple(key.split(".")), _other(key, directory))]), key


def _in_entry(array: str, name: str, value: Any) -> tuple[Table, Table, str]:
    entry = ARRAYS[array]
    changed = {**entry, name: value}
    if name in INSTEAD_OF:
        del changed[INSTEAD_OF[name]]
    if (array, name) == ("alerts.receivers", "kind"):  # not every kind takes what this one needs
        changed["kind"] = "alertmanager"
    at = tuple(array.split("."))
    return nested(at, [entry]), nested(at, [changed]), array


def _pair(key: str, directory: Path) -> tuple[Table, Table, str]:
    """Certificate and key go together, so that one of them is there before and is named anew."""
    name = key.removeprefix("mqtt.")
    mqtt = {"url": "mqtts://127.0.0.1:9", "cert_file": str(directory / "a"), "key_file": str(directory / "b")}
    return {"mqtt": mqtt}, {"mqtt": mqtt | {name: str(directory / "c")}}, key


def _other(key: str, directory: Path) -> Any:
    known = _by_hand(directory)
    if key in known:
        return known[key]
    *at, name = key.split(".")
    section = section_at(at)
    assert section is not None
    field = next(f for f, k in zip(section.model_fields.values(), names(section), strict=True) if k == name)
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    if get_origin(field.annotation) is Literal:
        return next(kind for kind in kinds if kind != field.default)
    return _other_of(kinds[0], field.default, key)


def _other_of(kind: Any, default: Any, key: str) -> Any:
    number = isinstance(default, int | float)
    if get_origin(kind) is Annotated:
        return _other_of(get_args(kind)[0], default, key)
    if kind is bool:
        return not default
    if kind is int:
        return default - 1 if number and default > 1 else default + 1 if number else 3
    if kind is float:
        return default * 0.9 if number and default else 0.5
    assert kind in {str, Path}, f"say in tests/daemon/other_values.py what else {key} could be"
    return default + "other" if isinstance(default, str) else "other"


def _by_hand(directory: Path) -> dict[str, Any]:
    """What the types do not say, with files that exist."""
    secret, prompts, skips = directory / "secret", directory / "prompts.jsonl", directory / "skips.json"
    secret.write_text("whsec_" + "c3BlY2Q" * 6 + "\n")
    prompts.write_text('{"prompt": "once"}\n{"prompt": "twice"}\n')
    skips.write_text(json.dumps(_SKIPS))
    url = directory / "url"
    url.write_text("http://127.0.0.1:9/secret\n")
    return {
        "server.listen": "127.0.0.1:1",
        "server.api_keys_file": str(secret),
        "server.allowed_hosts": ["proxy.example"],
        "admin.listen": "127.0.0.1:2",
        "admin.token_file": str(secret),
        "engine.vllm.options": {"seed": 1},
        "model.draft.kind": ["ngram", "suffix"],
        "model.draft.ngram_min": 3,
        "model.draft.skip_layers": [1],
        "model.draft.skip_file": str(skips),
        "canary.prompts": str(prompts),
        "policy.load.table": [[2, 5], [4, 2]],
        "policy.load.context_table": [[4000, 4]],
        "alerts.receivers.secret_file": str(secret),
        "alerts.receivers.url": "http://127.0.0.1:9/elsewhere",
        "alerts.receivers.url_file": str(url),
        "alerts.receivers.group_by": ["alertname"],
        "mqtt.url": "mqtt://127.0.0.1:9",
        "mqtt.commands": ["reload"],
        "mqtt.password_file": str(secret),
        "router.speculating": "http://127.0.0.1:9",
        "router.plain": "http://127.0.0.1:9",
        "router.key_file": str(secret),
        "telemetry.reports_file": str(directory / "reports.jsonl"),
        "tracing.endpoint": "http://127.0.0.1:9",
        "observe.url": "http://127.0.0.1:9/elsewhere",
        "observe.metrics_url": "http://127.0.0.1:9/metrics",
        "observe.key_file": str(secret),
        "store.directory": str(directory / "elsewhere"),
    }


_SKIPS: Final = {
    "target": "t",
    "layers": 4,
    "skip": [1],
    "examined": [2],
    "accepted": [1],
    "cost": 0.5,
    "k": 2,
    "speedup": 1.1,
    "seed": 0,
    "texts": "none",
    "tokens": 2,
    "command": "none",
}
