"""Whether acceptance has drifted, from one finished request after another."""

from policies.drift.base import Baseline, Kind, Shown, Signal, Stratum, Verdict, bucket
from policies.drift.settings import DriftSettings
from policies.drift.watch import Watch

__all__ = ["Baseline", "DriftSettings", "Kind", "Shown", "Signal", "Stratum", "Verdict", "Watch", "bucket"]
