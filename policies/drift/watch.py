"""From finished requests to signals, and what of it outlives a restart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import POSITIONS, Baseline, Kind, Shown, Signal, Stratum, Verdict
from policies.drift.settings import DriftSettings
from policies.drift.shape import Shape, level
from policies.drift.streams import Fall, Streams

_FIRST_ROWS: Final = 16
_VERSION: Final = 1
_TWO_SIDED: Final = 1.96
_NAN: Final = float("nan")


class Watch:
    """All strata of the pair of revisions that is served."""

    def __init__(self, settings: DriftSettings, seed: int = 0) -> None:
        """seed: of the coins that break ties of rates."""
        self._streams = Streams(settings, _FIRST_ROWS, seed)
        self._rows: dict[Stratum, int] = {}
        self._pair = ("", "")
        self._kept: dict[int, tuple[object, tuple[Signal, ...]]] = {}
        """By row: signals, and what else they hang on but its evidence."""

    def configure(self, settings: DriftSettings) -> None:
        """Judge by other settings from now on; what was learned stays."""
        self._streams.settings = settings

    def serve(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on. Falls that were found end with their pair; baselines are carried over, or
        learned anew, as configured. The first pair after `load` finds its own again.
        """
        pair = (target_revision, draft_revision)
        if pair == self._pair:
            return
        forget = self._streams.settings.after_update == "learn"
        if self._pair != ("", "") and self._rows:
            self._streams.restart(self._all_rows(), forget=forget)
        self._pair = pair

    def observe(self, shown: Shown) -> None:
        """Take in a finished request. One of another pair says nothing of this one."""
        if (shown.target_revision, shown.draft_revision) != self._pair or not sum(shown.examined):
            return
        examined = _four(shown.examined)
        kept = _four(shown.expected or shown.accepted)
        rates = (kept / np.maximum(examined, 1)).clip(0.0, 1.0)
        row = self._row(shown.stratum)
        self._kept.pop(row, None)
        self._streams.observe(
            np.array([row]), rates[None], examined[None].astype(np.int64), np.array([shown.t])
        )

    def accept(self, wanted: Callable[[Stratum], bool]) -> list[Stratum]:
        """What is shown now is meant to be so: of strata that are wanted and whose acceptance has left its baseline, a
        new one is learned from the next request on, and until then nothing but a collapse is said of them. Which those
        are.
        """
        flags = self._streams.flags
        found = {
            stratum: row
            for stratum, row in self._rows.items()
            if wanted(stratum) and (flags.fell[row] or flags.looping[row])
        }
        self._streams.restart(np.array(list(found.values()), dtype=np.int64), forget=True)
        for row in found.values():
            self._kept.pop(row, None)
        return list(found)

    @property
    def breaches(self) -> int:
        """How much is wrong now, of all strata and kinds."""
        flags = self._streams.flags
        return int(flags.fell.sum() + flags.collapsed.sum() + flags.looping.sum())

    def signals(self, now: float) -> list[Signal]:
        """What is to be said of every stratum, by each kind of detector."""
        return [signal for of_one in self.by_stratum(now) for signal in of_one]

    def by_stratum(self, now: float) -> list[tuple[Signal, ...]]:
        """The same, together for each stratum. What has not changed since it was last asked for is kept."""
        return [self._told(stratum, row, now) for stratum, row in self._rows.items()]

    def baselines(self) -> dict[str, float]:
        """By class: acceptance of the first position before anything changed, strata weighed by their requests; NaN
        until it is learned.
        """
        return self._by_class(lambda row: float(self._streams.ranks.mean(np.array([row]))[0, 0]))

    def baseline(self, traffic_class: str, proposer: str) -> Baseline | None:
        """Of these alone, whatever the temperatures; None until it is learned."""
        rows = [
            row
            for stratum, row in self._rows.items()
            if (stratum.traffic_class, stratum.proposer) == (traffic_class, proposer)
        ]
        known = [row for row in rows if self._streams.learned(np.array([row]))[0]]
        if not known:
            return None
        requests = self._streams.ranks.total(np.array(known))[:, 0]
        means = self._streams.ranks.mean(np.array(known))[:, 0]
        return Baseline(float(means @ requests / requests.sum()), int(requests.sum()))

    def scores(self, now: float) -> dict[str, float]:
        """By class: how near the worst stratum is to an alarm, which is at 1; NaN while nothing is learned or seen."""
        found: dict[str, float] = {}
        for stratum, row in self._rows.items():
            score = float(self._streams.score(np.array([row]))[0]) if self._speaks(row, now) else _NAN
            found[stratum.traffic_class] = np.fmax(found.get(stratum.traffic_class, _NAN), score)
        return found

    def saved(self) -> dict[str, Any]:
        """All that is known, of plain values and bytes."""
        return {
            "version": _VERSION,
            "pair": list(self._pair),
            "strata": [[list(stratum), self._streams.saved(row)] for stratum, row in self._rows.items()],
            "falls": [[row, [fall.position, list(fall.shape)]] for row, fall in self._streams.found.items()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave; to be asked of a new `Watch`. Raises `ValueError` where it is none."""
        try:
            if saved["version"] != _VERSION:
                raise ValueError(
                    f"it was written by another version ({saved['version']}, this is {_VERSION})"
                )
            for stratum, values in saved["strata"]:
                self._streams.restore(self._row(Stratum(*stratum)), values)
            for row, (position, (kind, *numbers)) in saved["falls"]:
                self._streams.found[row] = Fall(position, Shape(Kind(kind), *numbers))
            target, draft = saved["pair"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is no state of the drift detectors: {error!r}") from error
        self._pair = (target, draft)

    def _row(self, stratum: Stratum) -> int:
        row = self._rows.setdefault(stratum, len(self._rows))
        if row == self._streams.rows:
            self._streams.grow()
        return row

    def _speaks(self, row: int, now: float) -> bool:
        """Whether there is something to compare with, and something recent to compare."""
        age = now - float(self._streams.flags.seen_at[row])
        return age < self._streams.settings.stale_seconds and bool(self._streams.learned(np.array([row]))[0])

    def _told(self, stratum: Stratum, row: int, now: float) -> tuple[Signal, ...]:
        age = now - float(self._streams.flags.seen_at[row])
        state = (age < self._streams.settings.stale_seconds, self._streams.settings, self._pair)
        kept = self._kept.get(row)
        if kept is None or kept[0] != state:
            kept = self._kept[row] = (state, tuple(self._of(stratum, row, now)))
        return kept[1]

    def _of(self, stratum: Stratum, row: int, now: float) -> Iterator[Signal]:
        flags, speaks = self._streams.flags, self._speaks(row, now)
        fall = self._streams.found.get(row)
        for kind in (Kind.STEP, Kind.DECAY):
            is_it = fall is not None and fall.shape.kind is kind
            yield self._signal(kind, stratum, row, _verdict(is_it, speaks), fall if is_it else None)
        fresh = now - float(flags.seen_at[row]) < self._streams.settings.stale_seconds
        collapsed, looping = bool(flags.collapsed[row]), bool(flags.looping[row])
        fell_so = fall if collapsed and fall is not None and fall.position == 0 else None
        yield self._signal(Kind.COLLAPSE, stratum, row, _verdict(collapsed, fresh), fell_so)
        yield self._signal(
            Kind.LOOP, stratum, row, _verdict(looping, speaks), self._streams.risen(row) if looping else None
        )

    def _signal(self, kind: Kind, stratum: Stratum, row: int, verdict: Verdict, fall: Fall | None) -> Signal:
        target, draft = self._pair
        known = Signal(
            kind=kind, stratum=stratum, verdict=verdict, target_revision=target, draft_revision=draft
        )
        rows = np.array([row])
        now, now_error = level(self._streams.past(row, 0 if fall is None else fall.position))
        known = replace(known, now=now, now_error=now_error)
        if fall is None:
            return replace(
                known,
                before=float(self._streams.ranks.mean(rows)[0, 0]),
                requests_before=int(self._streams.ranks.total(rows)[0, 0]),
                score=float(self._streams.score(rows)[0]),
            )
        shape = fall.shape
        change, error = shape.after - shape.before, _TWO_SIDED * shape.error
        return replace(
            known,
            position=fall.position + 1,
            before=shape.before,
            after=shape.after,
            low=change - error,
            high=change + error,
            since=shape.since,
            requests_before=shape.requests_before,
            requests_after=shape.requests_after,
            score=float(self._streams.score(rows)[0]),
        )

    def _by_class(self, value: Callable[[int], float]) -> dict[str, float]:
        """Of the strata that have learned one, weighed by their requests."""
        sums: dict[str, list[float]] = {}
        for stratum, row in self._rows.items():
            of_class = sums.setdefault(stratum.traffic_class, [0.0, 0.0])
            rows = np.array([row])
            if self._streams.learned(rows)[0]:
                requests = float(self._streams.ranks.total(rows)[0, 0])
                of_class[0] += requests
                of_class[1] += requests * value(row)
        return {name: total / weight if weight else _NAN for name, (weight, total) in sums.items()}

    def _all_rows(self) -> NDArray[np.int64]:
        return np.arange(len(self._rows))


def _verdict(is_it: bool, speaks: bool) -> Verdict:
    """Nothing to say changes nothing: an alert of before stays as it is."""
    if not speaks:
        return Verdict.NO_EVIDENCE
    return Verdict.BREACHED if is_it else Verdict.FINE


def _four(by_position: Sequence[float]) -> NDArray[np.float64]:
    """[POSITIONS]; the last takes all that follow it."""
    padded = [*by_position, *[0.0] * POSITIONS]
    return np.array([*padded[: POSITIONS - 1], sum(padded[POSITIONS - 1 :])], dtype=np.float64)
