"""What can be said of an engine that is only looked at: from its counters, and from its answers."""

from policies.observed.counters import Counters, Interval, Look, interval
from policies.observed.gather import Gathering, Report
from policies.observed.texts import Answer, Manner, Noise, Texts, compare

__all__ = [
    "Answer",
    "Counters",
    "Gathering",
    "Interval",
    "Look",
    "Manner",
    "Noise",
    "Report",
    "Texts",
    "compare",
    "interval",
]
