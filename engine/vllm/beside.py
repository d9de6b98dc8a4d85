"""The engine process where vLLM is run by others: beside `vllm serve` with our plugin. It computes nothing.

```
daemon   Configure          ->  Beside  ->  Listener  ->  SpecdScheduler, in a process of vLLM's
         StepReport, Idle   <-          <-            <-
```

Requests reach vLLM past the daemon; those that the daemon sends all the same are refused. Ends when vLLM does, so that
the daemon says what it says of any engine that has gone, and begins anew to wait for it.
"""

import asyncio
import logging
import socket
import sys
from contextlib import AsyncExitStack
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
    Ready,
    Refused,
    Request,
    Shutdown,
    StepReport,
    Submit,
)
from engine.process import begin
from engine.reports import of_no_step
from engine.vllm.link import Listener
from engine.wire import frame, next_to_engine

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
        self._last = of_no_step(KVUsage(free=0, used=0))
        self._schedulers = 0

    async def run(self) -> int:
        """Until told to end, or vLLM has gone. Returns the exit code."""
        launch = await next_to_engine(self._reader)
        if launch is None:
            return exits.FINE
        assert isinstance(launch, Launch), f"the first frame must be Launch, it is {type(launch)}"
        async with AsyncExitStack() as stack:
            listener = Listener(
                Path(str(launch.vllm_options["socket"])),
                self._heard.put_nowait,
                lambda: self._heard.put_nowait(None),
            )
            try:
                await stack.enter_async_context(listener)
            except OSError as fault:
                return self._refuse(_no_socket(listener.path, fault))
            return await self._between(launch, listener)

    async def _between(self, launch: Launch, listener: Listener) -> int:
        listener.configure(Configure(policy=launch.policy, draft=launch.draft))
        self._send(Loading(f"waiting for the scheduler of vLLM at {listener.path}"))
        orders = asyncio.create_task(self._obey(listener))
        reports = asyncio.create_task(self._report(launch))
        await asyncio.wait({orders, reports}, return_when=asyncio.FIRST_COMPLETED)
        for task in (orders, reports):
            task.cancel()
        _, code = await asyncio.gather(orders, reports, return_exceptions=True)
        return code if isinstance(code, int) else exits.FINE

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

    async def _report(self, launch: Launch) -> int:
        """Until the last scheduler has gone, or serves what the daemon was not told of. Returns the exit code."""
        while True:
            match await self._next():
                case Ready() as ready:
                    if fault := other_target(ready.model_path, launch.model_path):
                        return self._refuse(fault)
                    self._schedulers += 1
                    if not self._last.step:
                        self._last = of_no_step(KVUsage(free=ready.kv_blocks, used=0))
                    if self._schedulers == 1:
                        self._send(structs.replace(ready, model_path=launch.model_path, foreign=True))
                case StepReport() as report:
                    self._last = report
                    self._send(report)
                case None:
                    self._schedulers -= 1
                    if not self._schedulers:
                        _log.error("vLLM's scheduler has gone")
                        return exits.FINE
                case _:
                    """Nothing that a scheduler says."""

    async def _next(self) -> FromEngine | None:
        """What a scheduler says next, None once it has gone. Says that it is idle meanwhile."""
        while True:
            try:
                return await asyncio.wait_for(self._heard.get(), _IDLE_SECONDS)
            except TimeoutError:
                if self._schedulers:
                    self._send(Idle(self._last.step, self._last.kv))

    def _refusal(self, request: Request) -> StepReport:
        last = self._last
        return of_no_step(
            last.kv,
            step=last.step,
            running=last.running,
            waiting=last.waiting,
            load_state=last.load_state,
            outputs=[
                Output(id=request.id, index=index, tokens=[], finish="error", error=_REFUSAL, refused=True)
                for index in range(request.n)
            ],
        )

    def _refuse(self, fault: str) -> int:
        """Returns the exit code."""
        self._send(Refused(fault))
        return exits.REFUSED

    def _send(self, message: FromEngine) -> None:
        self._writer.write(frame(message))


def other_target(theirs: str, ours: str) -> str | None:
    """Why vLLM's target is not the one that the daemon was told of, where both are directories here: then what is
    reported would bear the wrong revision. A name, or a directory of another machine's, says nothing.
    """
    try:
        if not Path(theirs).is_dir() or Path(theirs).resolve() == Path(ours).resolve():
            return None
    except OSError:
        return None
    return (
        f"vLLM serves {theirs}, and model.target.path leads to {ours}: have it name what vLLM serves and restart specd,"
        " since reports and alerts bear its revision"
    )


def _no_socket(path: Path, fault: OSError) -> str:
    return (
        f"engine.vllm.socket: nobody can listen at {path} ({fault.strerror or fault}): name a path of at most 100 "
        "characters in a directory that specd may write to"
    )


async def _run(sock: socket.socket) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    code = await Beside(reader, writer).run()
    writer.close()
    return code


def main() -> int:
    """Entry of the process."""
    sock = begin("the engine process of specd beside vLLM; started by the daemon")
    try:
        return asyncio.run(_run(sock))
    except ConnectionError:
        return exits.FINE  # the daemon went first


if __name__ == "__main__":
    sys.exit(main())
