"""The engine process where vLLM is run by others: beside `vllm serve` with our plugin. It computes nothing.

```
daemon   Configure          ->  Beside  ->  Listener  ->  SpecdScheduler, in a process of vLLM's
         StepReport, Idle   <-          <-            <-
```

Requests reach vLLM past the daemon; those that the daemon sends all the same are refused. Ends when vLLM does, so that
the daemon says what it says of any engine that has gone, and begins anew to wait for it.
"""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from msgspec import structs

from engine import exits
from engine.api import (
    Configure,
    FromEngine,
    Idle,
    KVUsage,
    Launch,
    Loading,
    Output,
    PhaseSeconds,
    Ready,
    Request,
    Shutdown,
    StepReport,
    Submit,
)
from engine.vllm.link import Listener
from engine.wire import frame, next_to_engine
from policies.base import LoadState

_IDLE_SECONDS: Final = 0.5
_REFUSAL: Final = (
    "this daemon stands beside a vLLM server and looks after its drafts: send requests to vLLM itself"
)
_log: Final = logging.getLogger("specd.engine")


class Beside:
    """Between one daemon and vLLM's schedulers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._heard: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self._last: StepReport | None = None
        self._blocks = 0

    async def run(self) -> int:
        """Until told to end, or vLLM has gone. Returns the exit code."""
        launch = await next_to_engine(self._reader)
        if launch is None:
            return exits.FINE
        assert isinstance(launch, Launch), f"the first frame must be Launch, it is {type(launch)}"
        path = Path(str(launch.vllm_options["socket"]))
        async with Listener(path, self._heard.put_nowait, lambda: self._heard.put_nowait(None)) as listener:
            listener.configure(Configure(policy=launch.policy, draft=launch.draft))
            self._send(Loading(f"waiting for the scheduler of vLLM at {path}"))
            orders = asyncio.create_task(self._obey(listener))
            reports = asyncio.create_task(self._report(launch))
            await asyncio.wait({orders, reports}, return_when=asyncio.FIRST_COMPLETED)
            for task in (orders, reports):
                task.cancel()
            await asyncio.gather(orders, reports, return_exceptions=True)
        return exits.FINE

    async def _obey(self, listener: Listener) -> None:
        """Until the daemon has enough."""
        while True:
            match await next_to_engine(self._reader):
                case Configure() as orders:
                    listener.configure(orders)
                case Submit(request=request):
                    self._send(self._refusal(request))
                case Shutdown() | None:
                    return
                case _:
                    """It is about texts, or about the machine: neither is ours."""

    async def _report(self, launch: Launch) -> None:
        """Until the last scheduler has gone."""
        schedulers = 0
        while True:
            match await self._next():
                case Ready() as ready:
                    schedulers += 1
                    self._blocks = ready.kv_blocks
                    if schedulers == 1:
                        self._send(structs.replace(ready, model_path=launch.model_path, foreign=True))
                case StepReport() as report:
                    self._last = report
                    self._send(report)
                case None:
                    schedulers -= 1
                    if not schedulers:
                        _log.error("vLLM's scheduler has gone")
                        return
                case _:
                    """Nothing that a scheduler says."""

    async def _next(self) -> FromEngine | None:
        """What a scheduler says next, None once it has gone. Says that it is idle meanwhile."""
        while True:
            try:
                return await asyncio.wait_for(self._heard.get(), _IDLE_SECONDS)
            except TimeoutError:
                if self._blocks:
                    self._send(Idle(self._last.step if self._last else 0, self._kv))

    @property
    def _kv(self) -> KVUsage:
        return self._last.kv if self._last else KVUsage(free=self._blocks, used=0)

    def _refusal(self, request: Request) -> StepReport:
        """A report of no step."""
        return StepReport(
            step=self._last.step if self._last else 0,
            phases=PhaseSeconds(schedule=0.0, draft=0.0, verify=0.0, commit=0.0),
            rows=0,
            prefill_rows=0,
            running=self._last.running if self._last else 0,
            waiting=self._last.waiting if self._last else 0,
            committed=0,
            kv=self._kv,
            load_state=self._last.load_state if self._last else LoadState.FULL,
            rounds=[],
            outputs=[
                Output(id=request.id, index=index, tokens=[], finish="error", error=_REFUSAL, refused=True)
                for index in range(request.n)
            ],
        )

    def _send(self, message: FromEngine) -> None:
        self._writer.write(frame(message))


async def _run(sock: socket.socket) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    code = await Beside(reader, writer).run()
    writer.close()
    return code


def main() -> int:
    """Entry of the process."""
    parser = argparse.ArgumentParser(
        description="the engine process of specd beside vLLM; started by the daemon"
    )
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the daemon decides when we end
    try:
        return asyncio.run(_run(socket.socket(fileno=arguments.fd)))
    except ConnectionError:
        return exits.FINE  # the daemon went first


if __name__ == "__main__":
    sys.exit(main())
