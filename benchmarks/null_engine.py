"""An engine that answers at once and computes nothing, so that all that takes time is the daemon.

Started by the daemon in the place of `engine.worker`. Each step gives every request the next tokens of its own prompt,
round and round. When a request ends, a line of `--times` says when each of its outputs was about to be sent: the
request's id, then seconds of the monotonic clock.
"""

import argparse
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from engine.api import (
    Cancel,
    FinishReason,
    FromEngine,
    Idle,
    KVUsage,
    Launch,
    Output,
    PhaseSeconds,
    Ready,
    Request,
    RequestReport,
    Round,
    Shutdown,
    StepReport,
    Submit,
)
from engine.wire import frame, read_to_engine
from policies.base import LoadState

_BLOCKS = 4096
_IDLE_SECONDS = 0.2
_CONTEXT = 1 << 20


class Text:
    """A request as far as it has come."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = self.rounds = 0
        self.times: list[float] = []
        """When its outputs were about to be sent."""

    def step(self, most: int) -> tuple[Output, Round]:
        """Up to `most` tokens, all but one of them drafted."""
        prompt, limit = self.request.prompt, self.request.sampling.max_tokens
        count = min(most, limit - self.tokens)
        tokens = [prompt[(self.tokens + at) % len(prompt)] for at in range(count)]
        self.tokens += count
        self.rounds += 1
        drafted = count - 1
        one = Round(
            request=self.request.id,
            traffic_class=self.request.traffic_class,
            proposer="ngram" if drafted else "none",
            k=drafted,
            drafted=drafted,
            examined=drafted,
            accepted=drafted,
            reason="static",
            text="null",
        )
        ended = self.tokens == limit
        finish: FinishReason | None = "length" if ended else None
        report = self._report() if ended else None
        return Output(id=self.request.id, tokens=tokens, finish=finish, report=report), one

    def _report(self) -> RequestReport:
        return RequestReport(
            rounds=self.rounds,
            drafted=0,
            examined=[],
            accepted=[],
            k_histogram={},
            proposers={},
            prompt_tokens=len(self.request.prompt),
            tokens=self.tokens,
        )


class NullEngine:
    """Steps every `pause` seconds, or as fast as the daemon reads."""

    def __init__(self, sock: socket.socket, times: TextIO, *, tokens: int, pause: float) -> None:
        """tokens: of each text in a step."""
        self._sock = sock
        self._times = times
        self._tokens = tokens
        self._pause = pause
        self._texts: dict[str, Text] = {}
        self._steps = 0

    def run(self) -> None:
        """Until the daemon says so, or has gone."""
        launch = read_to_engine(self._sock)
        assert isinstance(launch, Launch)
        self._send(_ready(launch))
        due = time.monotonic()
        while self._listen(max(due - time.monotonic(), 0.0) if self._texts else _IDLE_SECONDS):
            if not self._texts:
                self._send(Idle(self._steps, KVUsage(free=_BLOCKS, used=0)))
            elif time.monotonic() >= due:
                due = time.monotonic() + self._pause
                self._step()

    def _listen(self, seconds: float) -> bool:
        """Take what comes within this time. False when it is time to end."""
        while select.select([self._sock], [], [], seconds)[0]:
            seconds = 0.0
            match read_to_engine(self._sock):
                case Submit(request):
                    self._texts[request.id] = Text(request)
                case Cancel(id):
                    self._texts.pop(id, None)
                case Shutdown() | None:
                    return False
        return True

    def _step(self) -> None:
        stepped = [text.step(self._tokens) for text in self._texts.values()]
        outputs = [output for output, _ in stepped]
        self._steps += 1
        report = self._report(outputs, [one for _, one in stepped])
        now = time.monotonic()
        self._send(report)
        for output in outputs:
            text = self._texts[output.id]
            text.times.append(now)
            if output.finish is not None:
                self._tell(self._texts.pop(output.id))

    def _report(self, outputs: list[Output], rounds: list[Round]) -> StepReport:
        running = len(self._texts)
        return StepReport(
            step=self._steps,
            phases=PhaseSeconds(schedule=0.0, draft=0.0, verify=1e-6, commit=0.0),
            rows=running,
            prefill_rows=0,
            running=running,
            waiting=0,
            committed=sum(len(output.tokens) for output in outputs),
            kv=KVUsage(free=_BLOCKS - running, used=running),
            load_state=LoadState.FULL,
            rounds=rounds,
            outputs=outputs,
        )

    def _tell(self, text: Text) -> None:
        self._times.write(f"{text.request.id} {' '.join(map(repr, text.times))}\n")
        self._times.flush()

    def _send(self, message: FromEngine) -> None:
        self._sock.sendall(frame(message))


def _ready(launch: Launch) -> Ready:
    return Ready(
        model_path=launch.model_path,
        model_type="null",
        dtype=launch.dtype,
        quantization=launch.quantization,
        max_context=_CONTEXT,
        kv_blocks=_BLOCKS,
        block_size=launch.block_size,
        proposers=("ngram",),
        memory={"weights": 0},
    )


def main() -> int:
    """Entry of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--cpus", help="to run on, as 1,2,3; unset: where the daemon runs")
    arguments = parser.parse_args()
    if arguments.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments.cpus.split(",")})
    try:
        with socket.socket(fileno=arguments.fd) as sock, arguments.times.open("a") as times:
            NullEngine(sock, times, tokens=arguments.tokens, pause=arguments.pause).run()
    except ConnectionError:
        return 0  # the daemon went first
    return 0


if __name__ == "__main__":
    sys.exit(main())
