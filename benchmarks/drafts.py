"""`make bench-drafts DATA=...`: what drafts are worth on prompts that none of them was trained on.

Conditional acceptance by position and category, greedy and at temperature 0.7; tokens per round; trees against chains
of as many tokens; what drafts of some shapes take; and the speed of one request under the default policy against plain
decoding, to the end of its answer, by category and on each of eight prompts. Writes benchmarks/results/drafts.json
and drafts.md.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from benchmarks.contenders import Ours, encode
from benchmarks.drafts_page import PLAIN, SHAPES, DraftFigures, Shape, Speeds, StepTime, Written
from benchmarks.paper import write
from benchmarks.questions import CHAT, Question, by_category, eight, human_eval, spec_bench
from benchmarks.shown import DEPTH, LONGEST, Shown
from engine.api import DraftSettings, PhaseSeconds
from policies.fixed import Fixed
from specd.models.cache import cache_dir, hashes
from specd.models.drafts import shipped_head
from specd.models.resolve import resolve_target

_RESULTS = Path(__file__).parent / "results"
_TOGETHER = 8  # requests at a time where only acceptance is measured
_BUDGETS = (
    (4, 2),
    (8, 4),
    (16, 5),
)  # nodes, levels of the tree; the chain has as many tokens as the tree has nodes, or as many as it may have
_HEAD: Final = "eagle"
_WARM: Final = 0.7


class Bench:
    """The engine with the package's head, the prompts, and a bar that shows how far it is."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        path = resolve_target("demo")
        head = shipped_head(path, hashes()) if args.head is None else args.head
        draft = DraftSettings(kinds=("ngram", _HEAD), head_path=str(head))
        self.args = args
        self.questions = [*spec_bench(args.data, args.each), *human_eval(args.data, 2 * args.each)]
        self.eight = eight(args.data)
        every = [*self.questions, *self.eight]
        self._prompts = dict(zip(every, encode(path, [question.text for question in every]), strict=True))
        settings = {"prefix_cache": False, "rows_beside_decodes": 0, "verification": "token"}
        self.ours = Ours(path, cache_dir() / "kernels", draft=draft, **settings)
        self.grown: Counter[int] = Counter()
        """Rounds of the default policy by the tokens of their trees; 0 where there was none."""
        self._progress = progress

    def acceptance(self, temperature: float) -> dict[str, Shown]:
        """By category, of chains by the head."""
        shown: dict[str, Shown] = {}
        with (
            self.ours.engine.lent(Fixed(_HEAD, DEPTH)),
            self._bar(f"acceptance at {temperature:g}") as step,
        ):
            for category, group in by_category(self.questions):
                shown[category] = self._shown(group, temperature=temperature)
                step(1 / len(by_category(self.questions)))
        return shown

    def trees(self) -> dict[int, tuple[Shown, Shown]]:
        """By budget of tokens: chains, trees, greedy, on chats."""
        chats = [question for question in self.questions if question.category in CHAT]
        found = {}
        with self._bar("trees and chains") as step:
            for nodes, levels in _BUDGETS:
                pair = []
                for policy in (Fixed(_HEAD, min(nodes, LONGEST)), Fixed(_HEAD, levels, nodes)):
                    with self.ours.engine.lent(policy):
                        pair.append(self._shown(chats[::2]))
                    step(1 / 2 / len(_BUDGETS))
                found[nodes] = (pair[0], pair[1])
        return found

    def step_times(self) -> dict[Shape, StepTime]:
        """Of one request's steps, plain and with drafts of each shape, which take turns."""
        prompt = self._prompts[self.questions[0]]
        seen: dict[Shape, list[PhaseSeconds]] = {shape: [] for shape in (PLAIN, *SHAPES)}
        with self._bar("what drafts take") as step:
            for _ in range(self.args.repeats):
                for shape, times in seen.items():
                    with self.ours.engine.lent(Fixed(_HEAD, shape.levels, shape.nodes)):
                        times.extend(self._phases(prompt, shape))
                    step(1 / self.args.repeats / len(seen))
        return {shape: StepTime.of(times) for shape, times in seen.items()}

    def speeds(self, questions: Sequence[Question]) -> Speeds:
        """Of one request at a time, the two ways taking turns: what took the median time of each."""
        found = {}
        modes = {"plain": self.ours.plain, "policy": self.ours.adaptive}
        with self._bar("one request at a time") as step:
            for question in questions:
                runs: dict[str, list[Written]] = {mode: [] for mode in modes}
                for _ in range(self.args.repeats):
                    for mode, configure in modes.items():
                        configure()
                        runs[mode].append(self._written(question, seen=mode == "policy"))
                found[question] = {mode: Written.median(of) for mode, of in runs.items()}
                step(1 / len(questions))
        return found

    def _written(self, question: Question, *, seen: bool) -> Written:
        """An answer, to its end. seen: count the trees."""
        begin = time.perf_counter()
        reports = self.ours.reports([self._prompts[question]], self.args.tokens, ignore_eos=False)
        seconds = time.perf_counter() - begin
        if seen:
            rounds = (each for report in reports for each in report.rounds)
            self.grown.update(each.drafted if each.drafted > each.k else 0 for each in rounds)
        return Written(sum(len(output.tokens) for report in reports for output in report.outputs), seconds)

    def _shown(self, questions: Sequence[Question], temperature: float = 0.0) -> Shown:
        shown = Shown()
        for start in range(0, len(questions), _TOGETHER):
            prompts = [self._prompts[question] for question in questions[start : start + _TOGETHER]]
            reports = self.ours.reports(prompts, self.args.tokens, temperature=temperature, ignore_eos=False)
            for output in (output for report in reports for output in report.outputs):
                if output.report is not None:
                    shown.add(output.report)
        return shown

    def _phases(self, prompt: list[int], shape: Shape) -> list[PhaseSeconds]:
        """Of the steps whose draft has this shape: near its end a text has room for a smaller one alone."""
        reports = self.ours.reports([prompt], self.args.tokens)
        return [report.phases for report in reports if [each.k for each in report.rounds] == [shape.levels]]

    @contextmanager
    def _bar(self, name: str) -> Iterator[Any]:
        task = self._progress.add_task(name, total=1.0)
        yield lambda share: self._progress.advance(task, share)
        self._progress.update(task, completed=1.0)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-drafts", description=__doc__)
    data = "folder with spec_bench.jsonl, human_eval.jsonl and bench_prompts.json"
    parser.add_argument("--data", type=Path, required=True, help=data)
    parser.add_argument("--head", type=Path, help="a head for the demo model; the package's unless given")
    parser.add_argument("--each", type=int, default=8, help="prompts of each category (default 8)")
    parser.add_argument("--tokens", type=_tokens, default=128, help="new tokens per prompt (default 128)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds where time is measured (default 3)")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for drafts.json and drafts.md")
    args = parser.parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        bench = Bench(args, progress)
        figures = DraftFigures(
            greedy=bench.acceptance(0.0),
            warm=bench.acceptance(_WARM),
            trees=bench.trees(),
            steps=bench.step_times(),
            speeds=bench.speeds([*_some_of_each(bench.questions, 2), *bench.eight]),
            memory=bench.ours.engine.memory,
            grown=bench.grown,
        )
    page = figures.page()
    Console().print("\n".join(page))
    given = f"--each {args.each} --tokens {args.tokens} --repeats {args.repeats}"
    command = f'make bench-drafts DATA=... ARGS="{given}"'
    write(args.out, "drafts", command, figures.document(), page)
    return 0


def _tokens(text: str) -> int:
    least = 2 * LONGEST
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: the longest drafts need texts of {least} tokens or more")
    return int(text)


def _some_of_each(questions: Sequence[Question], few: int) -> list[Question]:
    return [question for _, group in by_category(questions) for question in group[:few]]


if __name__ == "__main__":
    sys.exit(main())
