"""Machines to simulate: two that are known by name, and those of a profile."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

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


def _from_file(path: Path) -> Machine:
    try:
        return _parsed(json.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        names = " and ".join(BUILTIN)
        raise UserError(
            f"--profile {path} cannot be read: {error}. Without a file there are {names}."
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f'--profile {path} is no cost profile ({error!r}): {{"steps": [[1, 0.008], [64, 0.0084]], "key": 4e-8,'
            ' "drafts": {"eagle": {"level": 0.0004}}}, in seconds, is one.'
        ) from error


def _parsed(document: dict[str, Any]) -> Machine:
    drafts = {name: DraftCost(**cost) for name, cost in document["drafts"].items()}
    steps = [(int(rows), float(cost)) for rows, cost in document["steps"]]
    costs = StepCosts.measured(steps, drafts)
    more = {name: document[name] for name in ("prompt_key", "max_running") if name in document}
    key = StepCosts(costs.steps, drafts, key=float(document.get("key", 0.0)))
    return Machine(costs=key, proposer=next(iter(drafts)), **more)
