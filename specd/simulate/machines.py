"""Machines to simulate: two that are known by name, and those of a profile."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from policies.cost import DraftCost, StepCosts
from policies.simulate import Machine
from specd.errors import UserError

_MS: Final = 1e-3


def _steps(*milliseconds: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((rows, cost * _MS) for rows, cost in milliseconds)


HOST: Final = Machine(
    costs=StepCosts(
        steps=_steps(
            (1, 10.5), (2, 11.3), (4, 12.2), (8, 14.4), (16, 19.4), (32, 27.4), (80, 45.0), (256, 105.0)
        ),
        drafts={"eagle": DraftCost(level=0.36 * _MS, fixed=0.5 * _MS)},
        key=0.5e-6,
    ),
    proposer="eagle",
    prompt_key=0.35e-6,
)
"""The demo model (135 M parameters, bf16) with its EAGLE head on two cores with AVX512-BF16: measured, and rounded."""

GPU: Final = Machine(
    costs=StepCosts(
        steps=_steps((1, 8.0), (64, 8.4), (128, 9.4), (256, 12.0), (512, 20.0), (2048, 68.0)),
        drafts={"eagle": DraftCost(level=0.4 * _MS, fixed=0.1 * _MS)},
        key=0.04e-6,
    ),
    proposer="eagle",
    prompt_key=0.002e-6,
    max_running=256,
    max_batch_tokens=2048,
    rows_beside_decodes=2048,
)
"""Made up, after a model of 8 B parameters in bf16 on a large accelerator: 16 GB of weights at 2 TB/s are 8 ms a step,
64 rows cost nothing, from some 128 on rows are computed at 31 us each; a token's keys are 128 KiB at 3.3 TB/s."""

BUILTIN: Final = {"host": HOST, "gpu": GPU}


def machine(name: str, max_running: int | None = None) -> Machine:
    """By name, or from a file. max_running: instead of its own. Raises UserError."""
    found = BUILTIN[name] if name in BUILTIN else _from_file(Path(name))
    return found if max_running is None else replace(found, max_running=max_running)


@dataclass(frozen=True, slots=True)
class _File:
    """A profile of `specd calibrate`, of which only the costs are read, or one that is made up."""

    costs: StepCosts
    proposer: str | None = None
    prompt_key: float | None = None
    max_running: int = HOST.max_running
    max_batch_tokens: int = HOST.max_batch_tokens
    rows_beside_decodes: int = HOST.rows_beside_decodes


def _from_file(path: Path) -> Machine:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        names = " and ".join(BUILTIN)
        raise UserError(
            f"--profile {path} cannot be read: {error}. Without a file there are {names}."
        ) from error
    except msgspec.MsgspecError as error:
        raise UserError(f"--profile {path} is no cost profile ({error}): {_EXAMPLE}.") from error
    if reason := _unusable_reason(found):
        raise UserError(f"--profile {path}: {reason}; {_EXAMPLE}.")
    return Machine(
        costs=found.costs,
        proposer=found.proposer or _costliest(found.costs),
        prompt_key=found.costs.key if found.prompt_key is None else found.prompt_key,
        max_running=found.max_running,
        max_batch_tokens=found.max_batch_tokens,
        rows_beside_decodes=found.rows_beside_decodes,
    )


_EXAMPLE: Final = (
    'take one that `specd calibrate` wrote, or make one up, in seconds: {"costs": {"steps": [[1, 0.008], [64, 0.0084],'
    ' [512, 0.02]], "key": 4e-8, "drafts": {"eagle": {"level": 0.0004, "fixed": 0.0001}}}, "max_running": 256}'
)


def _unusable_reason(found: _File) -> str | None:
    costs = found.costs
    rows = [rows for rows, _ in costs.steps]
    if not rows or rows[0] != 1 or any(low >= high for low, high in pairwise(rows)):
        return "its steps are not of ascending rows from 1 on"
    if any(low > high for (_, low), (_, high) in pairwise(costs.steps)) or costs.plain <= 0:
        return "a step of more rows takes less time, or none"
    if found.proposer is not None and found.proposer not in costs.drafts:
        return f"there are no costs of {found.proposer}"
    return None if costs.drafts else "there are no costs of drafts"


def _costliest(costs: StepCosts) -> str:
    """The draft that one would want to save."""
    return max(costs.drafts, key=lambda name: costs.drafts[name].level)
