"""An engine without a model: a real process that speaks the wire and echoes every prompt, round and round.

Text i of a request begins at token i of the prompt. With logprobs, each token is the likeliest, at -0.5, and the next
ids follow at -1.5, -2.5 and so on.

Its manners come from a JSON file that is read anew at each start, so a test can change them between lives:
  refuse          a sentence: Refused instead of Ready
  alone           a file that only one engine can hold at a time, as memory: the others lack it
  refuse_model    refuse only models with this in their path
  hold            a file: while it is there, no step is taken of models with what it says in their path
  poor_model      accept nothing for models with this in their path
  cured_by        but accept as much as ever with a head that has this in its path
  exit_loading    an exit code: end while loading
  load_seconds    pause before Ready
  keep_loading    a file: while it is there, Ready is not said
  step_seconds    pause per step
  max_context     as told in Ready
  garbage         send bytes that are no frame after Ready
  deaf            do not end when the socket closes
  writes          a text for stderr, at the start
  exit_at         an exit code: end so where a prompt makes it crash
  shares          a file: each share of the machine that it is given is added as a line, "pid share"
  meek            make no trouble, whatever a prompt contains
  mute            trouble comes before anything was said of the prompt that makes it
A prompt that contains one of the tokens below makes trouble: FAIL at its first step, the others once a token was said.
"""

import argparse
import fcntl
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
    Move,
    Output,
    PhaseSeconds,
    Ready,
    Refused,
    Request,
    RequestReport,
    Room,
    Round,
    Shutdown,
    StepReport,
    Submit,
    TokenLogprob,
)
from engine.wire import frame, read_to_engine
from policies.base import LoadState

EOS, CRASH, HANG, FAIL = 1, 2, 3, 4
BLOCKS = 64


def scored(token: int, likeliest: int) -> TokenLogprob:
    return TokenLogprob(token, -0.5, 1, [(token + i, -0.5 - i) for i in range(likeliest)])


class Sequence:
    """One text's progress: token i of text t is token i + t of the endlessly repeated prompt."""

    def __init__(self, request: Request, index: int, *, poor: bool = False, meek: bool = False) -> None:
        self.poor, self.meek = poor, meek
        self.request = request
        self.index = index
        self.tokens = 0
        self.rounds: list[Round] = []

    def step(self, k: int) -> Output:
        sampling = self.request.sampling
        if FAIL in self.request.prompt and not self.meek:
            error = "the fake engine was told to fail"
            return Output(id=self.request.id, index=self.index, tokens=[], finish="error", error=error)
        first = not self.rounds
        drafted = k if self.request.speculate and sampling.prompt_logprobs is None else 0
        accepted = 0 if self.poor else drafted if len(self.rounds) % 2 == 0 else drafted // 2
        tokens, finish = self._tokens(accepted)
        self.rounds.append(self._round(drafted, accepted))
        return Output(
            id=self.request.id,
            index=self.index,
            tokens=tokens,
            logprobs=None if sampling.logprobs is None else [scored(t, sampling.logprobs) for t in tokens],
            prompt_logprobs=self._prompt_logprobs() if first and self.index == 0 else None,
            finish=finish,
            report=self.report() if finish else None,
        )

    def _tokens(self, accepted: int) -> tuple[list[int], str | None]:
        prompt, sampling = self.request.prompt, self.request.sampling
        tokens = []
        for _ in range(min(accepted + 1, sampling.max_tokens - self.tokens)):
            tokens.append(prompt[(self.tokens + self.index) % len(prompt)])
            self.tokens += 1
            if tokens[-1] == EOS and not sampling.ignore_eos:
                return tokens, "stop"
        return tokens, "length" if self.tokens == sampling.max_tokens else None

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        count = self.request.sampling.prompt_logprobs
        return None if count is None else [None, *(scored(token, count) for token in self.request.prompt[1:])]

    def _round(self, drafted: int, accepted: int) -> Round:
        return Round(
            request=f"{self.request.id}#{self.index}" if self.index else self.request.id,
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
            cached_tokens=len(self.request.prompt) // 2,
            not_speculated=None if self.request.sampling.prompt_logprobs is None else "prompt logprobs",
        )


class Engine:
    def __init__(self, sock: socket.socket, manners: dict) -> None:
        self.sock, self.manners = sock, manners
        self.meek = bool(manners.get("meek"))
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.steps = 0

    def send(self, message) -> None:
        self.sock.sendall(frame(message))

    def run(self) -> None:
        launch = read_to_engine(self.sock)
        assert isinstance(launch, Launch)
        self.model = launch.model_path
        cured = self.manners.get("cured_by", "no head at all") in launch.draft.head_path
        poor = "poor_model" in self.manners and self.manners["poor_model"] in launch.model_path
        self.poor = poor and not cured
        self.policy, self.max_running = launch.policy, launch.max_running
        sys.stderr.write(self.manners.get("writes", ""))
        sys.stderr.flush()
        self.took(launch.share)
        self.load(launch)
        while True:
            while select.select([self.sock], [], [], 0 if self.sequences else 0.05)[0]:
                if not self.take(read_to_engine(self.sock)):
                    return
            if self.sequences:
                self.step()
            else:
                self.send(Idle(self.steps, KVUsage(free=BLOCKS, used=0)))

    def took(self, share: str) -> None:
        """A line in the file `shares`."""
        if "shares" in self.manners:
            with Path(self.manners["shares"]).open("a") as file:
                file.write(f"{os.getpid()} {share}\n")

    def load(self, launch: Launch) -> None:
        self.send(Loading(f"reading {launch.model_path}"))
        time.sleep(self.manners.get("load_seconds", 0))
        while Path(self.manners.get("keep_loading", "/nowhere/at/all")).exists():
            time.sleep(0.01)
        if "exit_loading" in self.manners:
            sys.exit(self.manners["exit_loading"])
        if "alone" in self.manners and not self.alone(Path(self.manners["alone"])):
            self.send(Refused("memory holds one engine", lacks_memory=True))
            sys.exit(0)
        if "refuse" in self.manners and self.manners.get("refuse_model", "") in launch.model_path:
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
                proposers=launch.draft.kinds,
                memory={"weights": 1, "kv": 2},
                room=Room(**self.manners["room"]) if "room" in self.manners else None,
            )
        )
        if self.manners.get("garbage"):
            self.sock.sendall(b"\x05\x00\x00\x00hello")

    def alone(self, file: Path) -> bool:
        """Whether no other engine holds this file; the kernel drops the lock with the process."""
        self.memory = file.open("w")
        try:
            fcntl.flock(self.memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take(self, message) -> bool:
        match message:
            case Submit(request):
                for index in range(request.n):
                    self.sequences[request.id, index] = Sequence(
                        request, index, poor=self.poor, meek=self.meek
                    )
            case Cancel(id):
                for key in [key for key in self.sequences if key[0] == id]:
                    del self.sequences[key]
            case Configure():
                self.policy = message.policy
            case Move(share):
                self.took(share)
            case Shutdown() | None:
                while self.manners.get("deaf"):
                    time.sleep(1)
                return False
        return True

    def held(self) -> bool:
        file = Path(self.manners.get("hold", "/nowhere/at/all"))
        return file.exists() and file.read_text() in self.model

    def trouble(self, prompt: list[int]) -> None:
        if self.meek:
            return
        if CRASH in prompt and "exit_at" in self.manners:
            sys.exit(self.manners["exit_at"])
        if CRASH in prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in prompt:
            time.sleep(3600)

    def k(self, request: Request) -> int:
        if {CRASH, HANG} & set(request.prompt):
            return 0
        return self.policy.k_max if request.k is None else request.k

    def step(self) -> None:
        while self.held():
            time.sleep(0.01)
        time.sleep(self.manners.get("step_seconds", 0.001))
        running = list(self.sequences.values())[: self.max_running]
        waiting = len(self.sequences) - len(running)
        for sequence in running:
            if sequence.rounds or self.manners.get("mute"):
                self.trouble(sequence.request.prompt)
        outputs = [sequence.step(self.k(sequence.request)) for sequence in running]
        for output in outputs:
            if output.finish:
                del self.sequences[output.id, output.index]
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
