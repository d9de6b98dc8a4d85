"""`[policy]`: how far to speculate."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from policies.load import Table, rules_of
from policies.settings import LoadSettings, PolicySettings, TenantSettings
from specd.config.section import Section, hot, restart

_LOAD = LoadSettings()
_POLICY = PolicySettings()


class LoadSection(Section):
    """The load policy: a hard cap on every request's k, whatever the policy would choose."""

    table: tuple[tuple[int, int], ...] | None = hot(
        _LOAD.table,
        "pairs [up to this many running, cap on a draft's levels], running ascending; the last cap holds on. Unset: "
        "no cap for goodput, which reckons with the load itself, and [[2, 8], [4, 6], [8, 3], [12, 1]] for ewma and "
        "static, which do not",
        min_length=1,
    )
    off_above: int | None = hot(
        _LOAD.off_above,
        "drafting is off while more requests than this run; unset: 12 where the table is unset and the kind is ewma or "
        "static, else never",
        ge=0,
    )
    resume_at: int | None = hot(
        _LOAD.resume_at,
        "once off, drafting is back when no more than this run; unset: two thirds of off_above",
        ge=0,
    )
    context_table: tuple[tuple[int, int], ...] = hot(
        _LOAD.context_table,
        "pairs [up to this many tokens of context in all texts that decode together, cap on a draft's levels]; empty: "
        "no such cap",
    )
    kv_reserve: float = hot(
        _LOAD.kv_reserve,
        "while requests wait and a smaller share of the KV blocks than this is available, the cap shrinks with what is "
        "left; 0: never",
        ge=0,
        le=1,
    )
    dwell_steps: int = hot(
        _LOAD.dwell_steps, "steps in a row that must allow a looser cap before it is granted", ge=0
    )
    from_profile: bool = hot(
        False,
        "whether the caps of policy.profile hold for goodput too, where table, off_above and context_table are unset; "
        "for ewma and static they do in any case. Without a profile it changes nothing",
    )

    @field_validator("table", "context_table")
    @classmethod
    def _ascending(cls, table: Table | None) -> Table | None:
        counts = [up_to for up_to, _ in table or ()]
        if counts != sorted(set(counts)):
            raise ValueError(f"the counts {counts} must ascend")
        if any(up_to < 1 or k < 0 for up_to, k in table or ()):
            raise ValueError("counts are at least 1 and caps at least 0")
        return table

    @model_validator(mode="after")
    def _has_an_off(self) -> Self:
        if self.resume_at is not None and self.off_above is None:
            raise ValueError(f"resume_at = {self.resume_at} needs off_above: above what is drafting off?")
        return self


class TenantSection(Section):
    """What the requests of one tenant may have. Tenants are as in `[[server.limits]]`."""

    name: str = hot(..., 'the tenant; "*" is each that has no entry, on its own', min_length=1)
    k_max: int | None = hot(None, "no draft has more levels than this; 0 switches drafting off", ge=0, le=16)
    draft_tokens: int | None = hot(
        None,
        "tokens drafted in a step for all of its requests together, evenly; these get chains and no trees",
        ge=0,
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.k_max is None and self.draft_tokens is None:
            raise ValueError("neither k_max nor draft_tokens is set: set one, or leave the tenant out")
        return self


class PolicySection(Section):
    """How each request's draft length is chosen."""

    kind: Literal["goodput", "ewma", "static", "off"] = hot(
        _POLICY.kind,
        "goodput chooses k for all requests together by measured cost, ewma for each by its acceptance alone, static "
        "keeps static_k, off never drafts",
    )
    objective: Literal["throughput", "latency"] = hot(
        _POLICY.objective,
        "what comes first: tokens a second, or that no draft of goodput's choosing makes a step longer than latency_ms "
        "allows",
    )
    latency_ms: float | None = hot(
        _POLICY.latency_ms,
        'objective "latency": of 100 steps in which a text decodes, 99 are to take no longer, ms',
        gt=0,
    )
    k_max: int = hot(_POLICY.k_max, "no draft has more levels than this", ge=0, le=16)
    static_k: int = hot(_POLICY.static_k, 'the k of kind = "static"', ge=0, le=16)
    half_life: float = hot(_POLICY.half_life, "examined tokens after which old evidence weighs half", gt=0)
    prior: float = hot(_POLICY.prior, "acceptance assumed for a class that has shown nothing yet", ge=0, le=1)
    draft_cost: float | None = hot(
        _POLICY.draft_cost,
        "cost of one more level drafted, in plain decode steps; unset takes what the engine measures of each proposer "
        "at the start, next to nothing for lookups",
        ge=0,
    )
    row_cost: float | None = hot(
        _POLICY.row_cost,
        "cost of verifying one more row, in plain decode steps; unset takes what the engine measures at the start",
        ge=0,
    )
    tree_nodes: int = hot(
        _POLICY.tree_nodes, "no tree has more tokens than this; 0 drafts chains only", ge=0, le=63
    )
    probe_every: int = hot(
        _POLICY.probe_every, "rounds (or, with drafting off by load, steps) between probes", ge=1
    )
    probe_k: int = hot(_POLICY.probe_k, "draft length of a probe", ge=1, le=16)
    profile: Path | None = restart(
        None,
        "what `specd calibrate` wrote: steps are reckoned to cost what it says from the start on, and for ewma and "
        "static its caps hold where [policy.load] sets none. Refused where it was measured on another host, of other "
        "models, or in another format",
    )
    load: LoadSection = LoadSection()
    tenants: tuple[TenantSection, ...] = hot((), "limits of tenants")

    @model_validator(mode="after")
    def _static_within_max(self) -> Self:
        if self.kind == "static" and self.static_k > self.k_max:
            raise ValueError(
                f"static_k = {self.static_k} is above k_max = {self.k_max}: raise k_max or lower static_k"
            )
        return self

    @model_validator(mode="after")
    def _latency_is_bounded(self) -> Self:
        if self.objective == "latency" and self.latency_ms is None:
            raise ValueError(
                'objective = "latency" needs latency_ms: how long 99 of 100 steps may take, in milliseconds'
            )
        return self

    @model_validator(mode="after")
    def _latency_is_kept(self) -> Self:
        if self.objective == "latency" and self.kind not in {"goodput", "off"}:
            raise ValueError(
                f'objective = "latency" needs kind = "goodput": {self.kind} does not reckon with seconds;'
                " [policy.load] is what bounds it"
            )
        return self

    @model_validator(mode="after")
    def _hysteresis(self) -> Self:
        rules = rules_of(self.settings())
        if rules.resume_at > rules.off_above:
            raise ValueError(
                f"load.resume_at = {rules.resume_at} is above load.off_above = {rules.off_above}:"
                " drafting would be on and off at once"
            )
        return self

    @model_validator(mode="after")
    def _one_entry_each(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ValueError(f"tenants need different names, these are {names}")
        return self

    def settings(self) -> PolicySettings:
        """As the policies take it, but for what a profile adds."""
        values = _values(self, but={"load", "tenants", "profile"})
        tenants = tuple(TenantSettings(**_values(tenant)) for tenant in self.tenants)
        return PolicySettings(
            **values, load=LoadSettings(**_values(self.load, but={"from_profile"})), tenants=tenants
        )


def _values(section: Section, but: Collection[str] = ()) -> dict[str, Any]:
    return {name: getattr(section, name) for name in type(section).model_fields if name not in but}
