"""A reload reaches every part that reads a setting: whoever began with other settings decides as if with these."""

from dataclasses import fields, replace
from typing import Any

import pytest

from policies.base import Option
from policies.settings import LoadSettings, PolicySettings, TenantSettings
from tests.policies.closed_loop import Loop

OLD = PolicySettings()
NEW: dict[str, dict[str, Any]] = {
    "kind": {"kind": "ewma"},
    "objective": {"objective": "latency", "latency_ms": 8.0},
    "latency_ms": {"objective": "latency", "latency_ms": 9.0},
    "k_max": {"k_max": 2},
    "static_k": {"kind": "static", "static_k": 6},
    "half_life": {"half_life": 4.0},
    "prior": {"prior": 0.05},
    "draft_cost": {"draft_cost": 0.5},
    "row_cost": {"row_cost": 0.3},
    "tree_nodes": {"tree_nodes": 4},
    "probe_every": {"prior": 0.05, "probe_every": 3, "kind": "ewma"},
    "probe_k": {"prior": 0.05, "probe_k": 4},
    "tenants": {"tenants": (TenantSettings("t", draft_tokens=5),)},
}
NEW_LOAD: dict[str, LoadSettings] = {
    "table": LoadSettings(table=((2, 8), (9, 1))),
    "off_above": LoadSettings(off_above=2),
    "resume_at": LoadSettings(off_above=3, resume_at=1, dwell_steps=2),
    "context_table": LoadSettings(context_table=((100, 8), (900, 2))),
    "kv_reserve": LoadSettings(kv_reserve=0.9),
    "dwell_steps": LoadSettings(table=((2, 8), (9, 1)), dwell_steps=2),
}
OFFERED = (Option("ngram", 8), Option("eagle", 8), Option("eagle", 8, width=2))
CASES = [*NEW, *NEW_LOAD]


def settings(key: str) -> tuple[PolicySettings, PolicySettings]:
    """With another value of this key, and the same with its default."""
    if key in NEW:
        new = replace(OLD, **NEW[key])
        return new, replace(new, **{key: getattr(OLD, key)})
    load = NEW_LOAD[key]
    without = replace(load, **{key: getattr(LoadSettings(), key)})
    return replace(OLD, load=load), replace(OLD, load=without)


def played(before: PolicySettings, after: PolicySettings) -> list[Any]:
    """What was decided under `after`, load up and down, where a controller began with `before`."""
    loop = Loop(4, lambda i, step: {"ngram": 0.3, "eagle": 0.2 + 0.2 * i}, settings=before)
    loop.options = lambda i, step, rng: OFFERED
    if after != before:
        loop.controller.configure(after)
    for step in range(48):
        loop.requests, loop.waiting, loop.kv_free = (1, 4, 2, 4)[step // 12], step // 18, 0.5
        loop.step()
    return [*zip(loop.reasons, loop.chosen, strict=True)]


def test_every_setting_has_a_case() -> None:
    named = {field.name for field in fields(PolicySettings)} - {"load"}
    assert named == set(NEW)
    assert {field.name for field in fields(LoadSettings)} == set(NEW_LOAD)


@pytest.mark.parametrize("key", CASES)
def test_a_reload_reaches_every_part_that_reads_a_setting(key: str) -> None:
    """Test that a controller that takes a setting over decides as one that has had it from the start, proposers, trees,
    probes and reasons included, and otherwise than with its default.
    """
    new, without = settings(key)
    assert played(OLD, new) == played(new, new)
    assert played(new, new) != played(without, without)
