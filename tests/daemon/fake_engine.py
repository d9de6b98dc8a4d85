"""An engine without a model: a real process that speaks the wire and echoes every prompt, round and round.

Its manners come from a JSON file that is read anew at each start, so a test can change them between lives:
  refuse          a sentence: Refused instead of Ready
  exit_loading    an exit code: end while loading
  load_seconds    pause before Ready
  step_seconds    pause per step
  max_context     as told in Ready
  garbage         send bytes that are no frame after Ready
  deaf            do not end when the socket closes
A prompt that contains one of the tokens below makes trouble at its first step.
"""

import argparse
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from engine.api import (
    Cancel,
    Configure,
    Idle,
    KVUsage,
    Launch,
    Loading,
    Output,
    PhaseSeconds,
    Ready,
    Refused,
    Request,
    RequestReport,
    Round,
    Shutdown,
    StepReport,
    Submit,
)
from engine.wire import frame, read_to_engine
from policies.base import LoadState

EOS, CRASH, HANG, FAIL = 1, 2, 3, 4
BLOCKS = 64


class Sequence:
    """One request's progress: token i is token i of the endlessly repeated prompt."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = 0
        self.rounds: list[Round] = []

    def step(self, k: int) -> Output:
        if FAIL in self.request.prompt:
            return Output(
                id=self.request.id, tokens=[], finish="error", error="the fake engine was told to fail"
            )
        drafted = k if self.request.speculate else 0
        accepted = drafted if len(self.rounds) % 2 == 0 else drafted // 2
        left = self.request.sampling.max_tokens - self.tokens
        tokens, finish = [], None
        for _ in range(min(accepted + 1, left)):
            tokens.append(self.request.prompt[self.tokens % len(self.request.prompt)])
            self.tokens += 1
            if tokens[-1] == EOS and not self.request.sampling.ignore_eos:
                finish = "stop"
                break
        if finish is None and self.tokens == self.request.sampling.max_tokens:
            finish = "length"
        self.rounds.append(self._round(drafted, accepted))
        return Output(
            id=self.request.id, tokens=tokens, finish=finish, report=self.report() if finish else None
        )

    def _round(self, drafted: int, accepted: int) -> Round:
        return Round(
            request=self.request.id,
            traffic_class=self.request.traffic_class,
            proposer="ngram" if drafted else "none",
            k=drafted,
            drafted=drafted,
            examined=min(accepted + 1, drafted),
            accepted=accepted,
            reason="static",
            text=f"fake: {drafted}",
        )

    def report(self) -> RequestReport:
        deepest = max(r.drafted for r in self.rounds)
        return RequestReport(
            rounds=len(self.rounds),
            drafted=sum(r.drafted for r in self.rounds),
            examined=[sum(r.examined > j for r in self.rounds) for j in range(deepest)],
            accepted=[sum(r.accepted > j for r in self.rounds) for j in range(deepest)],
            k_histogram={k: sum(r.k == k for r in self.rounds) for k in {r.k for r in self.rounds}},
            proposers={"ngram": sum(r.drafted > 0 for r in self.rounds)},
            prompt_tokens=len(self.request.prompt),
            tokens=self.tokens,
        )


class Engine:
    def __init__(self, sock: socket.socket, manners: dict) -> None:
        self.sock, self.manners = sock, manners
        self.sequences: dict[str, Sequence] = {}
        self.steps = 0

    def send(self, message) -> None:
        self.sock.sendall(frame(message))

    def run(self) -> None:
        launch = read_to_engine(self.sock)
        assert isinstance(launch, Launch)
        self.policy, self.max_running = launch.policy, launch.max_running
        self.load(launch)
        while True:
            while select.select([self.sock], [], [], 0 if self.sequences else 0.05)[0]:
                if not self.take(read_to_engine(self.sock)):
                    return
            if self.sequences:
                self.step()
            else:
                self.send(Idle(self.steps, KVUsage(free=BLOCKS, used=0)))

    def load(self, launch: Launch) -> None:
        self.send(Loading(f"reading {launch.model_path}"))
        time.sleep(self.manners.get("load_seconds", 0))
        if "exit_loading" in self.manners:
            sys.exit(self.manners["exit_loading"])
        if "refuse" in self.manners:
            self.send(Refused(self.manners["refuse"]))
            sys.exit(0)
        self.send(
            Ready(
                model_path=launch.model_path,
                model_type="fake",
                dtype=launch.dtype,
                quantization="none",
                max_context=launch.max_context or self.manners.get("max_context", 256),
                kv_blocks=BLOCKS,
                block_size=launch.block_size,
                proposer=launch.draft.kind,
                memory={"weights": 1, "kv": 2},
            )
        )
        if self.manners.get("garbage"):
            self.sock.sendall(b"\x05\x00\x00\x00hello")

    def take(self, message) -> bool:
        match message:
            case Submit(request):
                self.sequences[request.id] = Sequence(request)
            case Cancel(id):
                self.sequences.pop(id, None)
            case Configure():
                self.policy = message.policy
            case Shutdown() | None:
                while self.manners.get("deaf"):
                    time.sleep(1)
                return False
        return True

    def step(self) -> None:
        time.sleep(self.manners.get("step_seconds", 0.001))
        running = list(self.sequences.values())[: self.max_running]
        waiting = len(self.sequences) - len(running)
        for sequence in running:
            if CRASH in sequence.request.prompt:
                os.kill(os.getpid(), signal.SIGKILL)
            if HANG in sequence.request.prompt:
                time.sleep(3600)
        fixed = self.policy.k_max
        outputs = [s.step(fixed if s.request.k is None else s.request.k) for s in running]
        for output in outputs:
            if output.finish:
                del self.sequences[output.id]
        self.steps += 1
        self.send(
            StepReport(
                step=self.steps,
                phases=PhaseSeconds(schedule=0.0, draft=0.0, verify=0.001, commit=0.0),
                rows=len(running),
                prefill_rows=0,
                running=len(running),
                waiting=waiting,
                committed=sum(len(output.tokens) for output in outputs),
                kv=KVUsage(free=BLOCKS - len(running), used=len(running)),
                load_state=LoadState.FULL,
                rounds=[s.rounds[-1] for s in running if s.rounds],
                outputs=outputs,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--manners", type=Path, required=True)
    arguments = parser.parse_args()
    with socket.socket(fileno=arguments.fd) as sock:
        Engine(sock, json.loads(arguments.manners.read_text())).run()


if __name__ == "__main__":
    main()
