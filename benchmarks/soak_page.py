"""What `benchmarks.soak` has found, as a page and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.claims import markdown

_COLOURS: Final = {"engine killed": "tab:red", "engine stopped": "tab:orange", "target changed": "tab:green"}


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    asked, outcomes = found["asked"], found["outcomes"]
    words = (
        f"{asked['minutes']:g} minutes, {asked['clients']} clients with requests of every sort, some of whom leave in"
        f" the middle; meanwhile {_counted(found['trouble'])}."
    )
    rows = [[what, "kept" if held else "NOT KEPT", said] for what, held, said in found["bounds"]]
    requests = [[name, f"{count:,}"] for name, count in sorted(outcomes.items())]
    codes = ", ".join(f"{code} {count:,}" for code, count in sorted(found["codes"].items()))
    return [
        words,
        "",
        *markdown(("bound", "", "found"), rows),
        "",
        *markdown(("requests", ""), requests),
        "",
        f"Errors by code: {codes or 'none'}.",
        "",
        "What the daemon's memory is made of while nobody asks:",
        "",
        *markdown(("MiB", "settled", "at the end"), _made_of(found["at_rest"])),
        "",
        "![Resident memory of the daemon](soak.png)",
        "",
    ]


def _made_of(rests: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Rows of what is resident, by kind, and of what the C library's allocator has handed out and keeps."""
    parts = [
        {"resident": rest["mib"]}
        | {f"of that, {kind}": mib for kind, mib in rest["mapped"].items()}
        | {
            f"allocator, {what}": size / 2**20
            for what, size in (rest["inside"].get("allocator") or {}).items()
        }
        for rest in (rests["settled"], rests["at_the_end"])
    ]
    names = dict.fromkeys(name for part in parts for name in part)
    return [[name.replace("_", " "), *(f"{part.get(name, 0.0):.1f}" for part in parts)] for name in names]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {count:,} times" for what, count in sorted(counts.items()))


def plot(
    samples: Sequence[Mapping[str, float]], moments: Sequence[tuple[str, float]], settled: float, file: Path
) -> None:
    """Memory and file descriptors over time. moments: what was done after how many seconds; settled: likewise."""
    from matplotlib.figure import Figure  # noqa: PLC0415  slow to import

    figure = Figure(figsize=(9, 5), layout="constrained")
    memory, files = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    minutes = [sample["seconds"] / 60 for sample in samples]
    for axes, name in ((memory, "mib"), (files, "files")):
        axes.plot(minutes, [sample[name] for sample in samples], linewidth=1)
        axes.axvline(settled / 60, color="black", linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.3)
    for what, colour in _COLOURS.items():
        times = [seconds / 60 for name, seconds in moments if name == what]
        base = min((sample["mib"] for sample in samples), default=0.0)
        memory.plot(times, [base] * len(times), "|", color=colour, label=what, markersize=12)
    memory.set_ylabel("resident memory, MiB")
    memory.legend(fontsize=8)
    files.set(xlabel="minutes", ylabel="open files")
    figure.savefig(file, dpi=110)
