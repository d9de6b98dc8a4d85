"""What a calibration found, for people."""

from rich.table import Table

from policies.load import NO_CAP
from policies.profile import Cap, Point, Profile
from specd.tables import figures

_STEADY = 4
"""Of a load without drafts, p99 over p50, at most."""


def table(profile: Profile) -> Table:
    """A line for each number of texts: speed without drafts, and with each length over that."""
    lengths = sorted({point.k for point in profile.points})
    columns = ("texts", "tokens\neach", "off\ntokens/s", "p50 ms", "p99 ms")
    header = (*columns, *(f"k = {k}\ntimes" for k in lengths if k), "p99 ms\nat most k")
    rows = [
        _cells([point for point in points if point.running == running])
        for points in (profile.points, profile.long_points)
        for running in sorted({point.running for point in points})
    ]
    return figures(header, rows, named=False)


def summary(profile: Profile) -> str:
    """What follows."""
    if profile.crossover is None:
        crossover = "No load was found at which drafts cost more than they bring."
    else:
        crossover = f"With more than {profile.crossover} running, drafts cost more than they bring."
    lines = [
        crossover,
        f"For policies that do not reckon with the load, in [policy.load]: {_words(profile.load)}",
    ]
    if profile.context_table:
        pairs = [list(pair) for pair in profile.context_table]
        lines.append(f"Longer texts bear less: context_table = {pairs}")
    lines += _disturbance(profile)
    return "\n".join(lines)


def _disturbance(profile: Profile) -> list[str]:
    """Plain steps of one load all take about as long, unless something else wants the machine."""
    plain = [point for point in (*profile.points, *profile.long_points) if point.k == 0]
    disturbed = sorted({point.running for point in plain if point.p99 > _STEADY * point.p50})
    if not disturbed:
        return []
    loads = ", ".join(map(str, disturbed))
    return [
        f"Something else used the machine (some steps of {loads} texts took {_STEADY} times the usual): do it again."
    ]


def _cells(points: list[Point]) -> list[str]:
    plain, *drafted = sorted(points, key=lambda point: point.k)
    times = [f"{point.tokens_per_second / plain.tokens_per_second:.2f}" for point in drafted]
    return [
        str(plain.running),
        str(plain.context),
        f"{plain.tokens_per_second:.1f}",
        f"{plain.p50 * 1e3:.1f}",
        f"{plain.p99 * 1e3:.1f}",
        *times,
        f"{points[-1].p99 * 1e3:.1f}" if drafted else "",
    ]


def _words(cap: Cap) -> str:
    table = [list(pair) for pair in cap.table]
    if cap.off_above < NO_CAP:
        return f"table = {table}, off_above = {cap.off_above}, resume_at = {cap.resume_at}"
    return f"table = {table}" if len(table) > 1 else "no cap"
