"""`make pictures`: the plots of docs/policies.md, out of the formulas and the controller itself. Needs no model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from policies.base import Drafting, LoadView, Observation, Option, RequestView, StepSeen
from policies.controller import Controller
from policies.plan import speedups
from policies.settings import PolicyKind, PolicySettings
from specd.simulate.machines import HOST

_FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
_COSTS: Final = HOST.costs
_DRAFT: Final = HOST.proposer
_OPTIONS: Final = (Option(_DRAFT, 8),)
_CONTEXT: Final = 200
_K_MAX: Final = 8
_RATES: Final = (0.3, 0.5, 0.7, 0.9)
_COLOURS: Final = ("#d1495b", "#edae49", "#00798c", "#30638e")
_RUNNING: Final = (1, 8, 32)


class Batch:
    """Requests that decode together for ever under a policy, each drafted token of which is accepted by chance."""

    def __init__(self, requests: int, kind: PolicyKind = "goodput", seed: int = 0) -> None:
        self._requests = [
            RequestView(f"r{i}", "chat", "t", 1 << 20, _CONTEXT, True, None, options=_OPTIONS)
            for i in range(requests)
        ]
        self._policy = Controller(PolicySettings(kind=kind, k_max=_K_MAX), _COSTS)
        self._random = np.random.default_rng(seed)
        self._now = 0.0

    def step(self, rate: float) -> float:
        """One step at this acceptance; the mean k of its rounds."""
        n = len(self._requests)
        context = n * _CONTEXT
        offered = self._requests
        if not self._policy.wants_options:
            offered = [request._replace(options=()) for request in offered]
        decisions = self._policy.decide(LoadView(n, 0, 1.0, self._now, context), offered)
        lengths = [decision.k for decision in decisions]
        kept = [self._kept(k, rate) for k in lengths]
        drafting = _COSTS.draft(_DRAFT).of(max(lengths), sum(lengths))
        seconds = _COSTS.target(n + sum(lengths), n, context) + drafting
        self._now += seconds
        who = Drafting(_DRAFT, drafting, sum(k > 0 for k in lengths), max(lengths), sum(lengths))
        self._policy.observe(
            [
                Observation(request.request, "chat", _DRAFT, k, min(accepted + 1, k), accepted)
                for request, k, accepted in zip(self._requests, lengths, kept, strict=True)
                if k
            ],
            StepSeen(
                now=self._now,
                seconds=seconds,
                rows=n + sum(lengths),
                prefill_rows=0,
                padding=0,
                sequences=n,
                context=context,
                committed=n + sum(kept),
                drafting=(who,) if max(lengths) else (),
            ),
        )
        return sum(lengths) / n

    def _kept(self, k: int, rate: float) -> int:
        return next((i for i in range(k) if self._random.random() >= rate), k)


def goodput_over_k(path: Path) -> None:
    """What a draft of each length is worth where all have one as long."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    ks = range(_K_MAX + 1)
    for axes, running in zip(figure.subplots(1, len(_RUNNING), sharey=True), _RUNNING, strict=True):
        axes.axhline(1, color="#888888", lw=1)
        for rate, colour in zip(_RATES, _COLOURS, strict=True):
            gains = speedups(_COSTS, _DRAFT, [rate] * _K_MAX, running=running, context=_CONTEXT)
            best = int(np.argmax(gains))
            axes.plot(ks, gains, color=colour, label=f"acceptance {rate:g}")
            axes.plot(best, gains[best], "o", color=colour, ms=7)
        _dress(
            axes, f"{running} decoding", "draft length k", "tokens/s against plain" if running == 1 else ""
        )
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def decision_by_load(path: Path, *, warm_up: int = 300, steps: int = 200) -> None:
    """What the default policy chooses, once it knows the texts; and what the table by hand would allow."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    loads = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    for rate, colour in zip(_RATES, _COLOURS, strict=True):
        lengths = [_settled(Batch(n), rate, warm_up, steps) for n in loads]
        axes.plot(loads, lengths, "o-", color=colour, label=f"goodput, acceptance {rate:g}")
    table = [_settled(Batch(n, "static"), 1.0, 1, 1) for n in loads]
    axes.step(loads, table, where="pre", color="#888888", ls="--", label="table by hand, with static_k = 4")
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [str(n) for n in loads])
    axes.minorticks_off()
    _dress(axes, "", "requests that decode", "mean k")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def draft_that_breaks(path: Path, *, steps: int = 900) -> None:
    """A draft that is worth nothing for a while: how far each policy still drafts, step by step."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    broken = (steps // 3, 2 * steps // 3)
    axes.axvspan(*broken, color="#d1495b", alpha=0.12, lw=0, label="acceptance 0.02, else 0.7")
    kinds: Sequence[tuple[PolicyKind, str]] = (("goodput", "#30638e"), ("static", "#888888"))
    for kind, colour in kinds:
        batch = Batch(4, kind)
        lengths = [batch.step(0.02 if broken[0] <= step < broken[1] else 0.7) for step in range(steps)]
        axes.plot(_smoothed(lengths), color=colour, label=kind)
    _dress(axes, "", "step, 4 decoding", "mean k of 8 steps")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _settled(batch: Batch, rate: float, warm_up: int, steps: int) -> float:
    for _ in range(warm_up):
        batch.step(rate)
    return float(np.mean([batch.step(rate) for _ in range(steps)]))


def _smoothed(values: Sequence[float]) -> Any:
    return np.convolve(values, np.full(8, 1 / 8), mode="valid")


def _dress(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES: Final[dict[str, Callable[[Path], None]]] = {
    "goodput_over_k.png": goodput_over_k,
    "decision_by_load.png": decision_by_load,
    "draft_that_breaks.png": draft_that_breaks,
}


def main() -> None:
    """Draw all of them."""
    _FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        draw(_FOLDER / name)


if __name__ == "__main__":
    main()
