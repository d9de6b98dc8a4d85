"""Runs in vLLM's own environment, started by `benchmarks.vllm`: one in-process engine under a closed loop.

Requests come without end, so many at a time; the scheduler is handed from one rival to the next while they run, so no
figure has a beginning or a drain in it. A *slice* is what a rival does until whole turns of the prompts have ended, and
some seconds have passed.

static k   vLLM's scheduler with k for all batch sizes: what num_speculative_tokens = k does
table      vLLM's scheduler with the k that was best for this load on another mix
ours       SpecdScheduler
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.bar import Bar
from benchmarks.journal import Journal
from benchmarks.peers.machine import Quiet
from engine.vllm.link import SOCKET_VARIABLE
from specd.bench.prompts import prompts as of_mix

OURS: Final = "ours"
TABLE: Final = "table"
OTHER_MIX: Final = "mixed"
MOST: Final = 8  # tokens of a draft
_LOOKUP: Final = {
    "method": "ngram",
    "num_speculative_tokens": MOST,
    "prompt_lookup_max": 5,
    "prompt_lookup_min": 2,
}
_SPREAD: Final = (0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2)
"""Of the tokens that requests get in turn, lest they end all at once. A prompt has the same in every turn, so that all
rivals write the same texts.
"""
_NEAR: Final = 0.9  # of the best rate so far: who is slower is not measured again
_FIRST_ROUNDS: Final = 2  # in which all are measured
_TRIES: Final = 3
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_EAR: Final = """
import socket, sys
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(); print(flush=True)
peer, _ = server.accept()
while peer.recv(1 << 20): pass
"""


def static(k: int) -> str:
    """Its name."""
    return f"static {k}"


STATICS: Final = tuple(static(k) for k in range(MOST + 1))


@dataclass(frozen=True)
class Slice:
    """What came of a rival's turn. `spent`: seconds in our own code, of ours alone."""

    tokens: int
    seconds: float
    steps: int
    spent: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Loop:
    """An engine, and those who ask it."""

    def __init__(self, model: Path, dtype: str, *, most: int, tokens: int) -> None:
        """most: requests at a time. tokens: of an answer, on average."""
        from vllm import LLM  # noqa: PLC0415  vLLM is in this environment alone

        self._llm = LLM(
            model=str(model),
            dtype=dtype,
            max_num_seqs=most,
            max_model_len=4096,
            speculative_config=_LOOKUP,
            scheduler_cls="benchmarks.vllm_rivals.Switched",
        )
        self._engine = self._llm.llm_engine
        self._scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._lengths = tuple(round(tokens * share) for share in _SPREAD)
        self._asks: Iterator[list[int]] = iter(())
        self._running = self._serial = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each as a chat's first message."""
        tokenizer = self._llm.get_tokenizer()
        return [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
            for text in texts
        ]

    def ask(self, prompts: Sequence[list[int]]) -> None:
        """These from now on, in turn; what was asked before is answered first."""
        while self._running:
            self._step()
        self._asks = cycle(prompts)

    def slice(self, rival: str, k: int, level: int, turn: int, seconds: float) -> Slice:
        """What a rival does at so many at a time, in whole turns of so many requests. k: of static and table."""
        self._scheduler.hand_to(None if rival == OURS else k)
        while self._running < level:
            self._submit()
        pilot, tokens, ended, steps, wanted = self._scheduler.pilot, 0, 0, 0, turn
        spent, begin = pilot.spent, time.perf_counter()
        while ended < wanted:
            made, done = self._step()
            for _ in range(done):
                self._submit()
            tokens, ended, steps = tokens + made, ended + done, steps + 1
            if ended >= wanted and time.perf_counter() - begin < seconds:
                wanted = (ended // turn + 1) * turn
        return Slice(tokens, time.perf_counter() - begin, steps, pilot.spent - spent)

    def _submit(self) -> None:
        from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        number = self._serial
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=self._lengths[number % len(self._lengths)],
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = TokensPrompt(prompt_token_ids=next(self._asks))
        self._engine.add_request(f"r{number}", prompt, parameters)
        self._serial += 1
        self._running += 1

    def _step(self) -> tuple[int, int]:
        """(tokens made, requests that ended)."""
        outputs = self._engine.step()
        ended = sum(bool(output.finished) for output in outputs)
        self._running -= ended
        return sum(len(output.outputs[0].token_ids) for output in outputs), ended


class Measurement:
    """Everything, level by level."""

    def __init__(self, args: argparse.Namespace, journal: Journal) -> None:
        self._levels: list[int] = args.levels
        self._rounds: int = args.rounds
        self._tokens: int = args.tokens
        self._turn, self._seconds = args.turn, args.seconds
        entries = json.loads(args.prompts.read_text("utf-8"))
        self._mix = [entry["user"] for entry in entries]
        self._other = [prompt.text for prompt in islice(of_mix(OTHER_MIX), 24)]
        self._model, self._dtype = args.model, args.dtype
        self._bar = Bar(len(self._levels) * self._weight, journal)
        self._table: dict[int, int] = {}
        self._rates: dict[tuple[int, str], list[float]] = {}
        self._ours: dict[int, list[Slice]] = {}

    @property
    def _weight(self) -> int:
        """Of a level, in slices."""
        return 1 + len(STATICS) + self._rounds * (len(STATICS) + 2)

    def run(self) -> dict[str, Any]:
        """All figures, as JSON has them."""
        with self._bar:
            self._loop = Loop(self._model, self._dtype, most=max(self._levels), tokens=self._tokens)
            self._prompts = {"mix": self._loop.encode(self._mix), "other": self._loop.encode(self._other)}
            for level in self._levels:
                self._tune(level)
                self._measure(level)
        return {
            "table": self._table,
            "rates": [
                {"level": level, "rival": rival, "rates": rates}
                for (level, rival), rates in self._rates.items()
            ],
            "ours": {
                level: {
                    "step_seconds": sum(one.seconds for one in shown) / sum(one.steps for one in shown),
                    "spent_seconds": sum(one.spent for one in shown) / sum(one.steps for one in shown),
                }
                for level, shown in self._ours.items()
            },
        }

    def _tune(self, level: int) -> None:
        """vLLM's table, on another mix."""
        self._loop.ask(self._prompts["other"])
        self._loop.slice(static(MOST), MOST, level, max(level, 2), 0.0)  # whatever is compiled at first
        rates = [self._slice("tune", 0, level, static(k), k).rate for k in range(MOST + 1)]
        self._table[level] = rates.index(max(rates))

    def _measure(self, level: int) -> None:
        self._loop.ask(self._prompts["mix"])
        self._loop.slice(
            OURS, 0, level, self._turn, 2 * self._seconds
        )  # it learns what steps cost at this load
        self._bar.skip(1)
        order = random.Random(level)  # noqa: S311  an order, not a secret
        for turn in range(self._rounds):
            rivals = [*STATICS, TABLE, OURS]
            for rival in order.sample(rivals, len(rivals)):
                if turn >= _FIRST_ROUNDS and self._is_far(level, rival):
                    self._bar.skip(1)
                    continue
                k = self._table[level] if rival == TABLE else STATICS.index(rival) if rival in STATICS else 0
                shown = self._slice("round", turn, level, rival, k)
                self._rates.setdefault((level, rival), []).append(shown.rate)
                if rival == OURS:
                    self._ours.setdefault(level, []).append(shown)

    def _is_far(self, level: int, rival: str) -> bool:
        """Whether a static length was so slow in all rounds that it is not the best one."""
        best = max(
            max(rates) for (where, name), rates in self._rates.items() if where == level and name in STATICS
        )
        return rival in STATICS and max(self._rates[level, rival]) < _NEAR * best

    def _slice(self, what: str, turn: int, level: int, rival: str, k: int) -> Slice:
        def measure() -> Mapping[str, Any]:
            for _ in range(_TRIES):
                with Quiet() as quiet:
                    shown = self._loop.slice(rival, k, level, self._turn, self._seconds)
                if quiet.was_kept:
                    break
            return vars(shown)

        return Slice(**self._bar.measured(f"{what} {turn}, {level} at a time, {rival}", 1, measure))


@contextmanager
def somebody_listens() -> Iterator[None]:
    """Reports go where they would go in service: to another process."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/ear"
        with subprocess.Popen([sys.executable, "-c", _EAR, path], stdout=subprocess.PIPE) as ear:  # noqa: S603
            assert ear.stdout is not None
            ear.stdout.readline()
            os.environ[SOCKET_VARIABLE] = path
            try:
                yield
            finally:
                ear.kill()


def main() -> int:
    """Measure, and leave the figures in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--model", type=Path, required=True)
    option("--prompts", type=Path, required=True)
    option("--dtype", required=True)
    option("--levels", type=lambda text: [int(part) for part in text.split(",")], required=True)
    option("--rounds", type=int, required=True)
    option("--tokens", type=int, required=True)
    option("--turn", type=int, required=True)
    option("--seconds", type=float, required=True)
    option("--journal", type=Path, required=True)
    option("--resume", action="store_true")
    option("--out", type=Path, required=True)
    args = parser.parse_args()
    asked = {name: getattr(args, name) for name in ("dtype", "levels", "rounds", "tokens", "turn", "seconds")}
    try:
        journal = Journal(args.journal, asked, resume=args.resume)
    except ValueError as fault:
        print(fault, file=sys.stderr)  # noqa: T201  the answer of a command
        return 2
    os.environ.update(_ENVIRONMENT)
    with somebody_listens():
        figures = Measurement(args, journal).run()
    args.out.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
