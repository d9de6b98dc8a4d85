"""When the daemon's own requests step back, and what observers see of them."""

import asyncio
import math
from types import SimpleNamespace

from engine.api import Output, Request, SamplingParams
from specd.flights import Flights
from specd.observers import CANARY
from specd.target.lines import Traffic
from specd.target.replay import Manner, _Reader
from tests.daemon.conftest import until
from tests.daemon.test_telemetry_metrics import a_round, a_step


class Line:
    """Answers at once what is put to it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.supervisor = SimpleNamespace(flights=house(), submit=self._answer)

    def _answer(self, flight, request) -> None:
        self.asked.append(request.id)
        flight.put(Output(id=request.id, tokens=[5], finish="stop"))


def house() -> Flights:
    return Flights(
        places=lambda: 1,
        gate=lambda: None,
        window=4,
        clock=lambda: 0.0,
        cancel=lambda _: None,
        weight=lambda _: 1.0,
        most_unread=lambda: 99,
    )


def requests(count: int) -> list[Request]:
    return [
        Request(id=f"{CANARY}-{i}", prompt=[1], sampling=SamplingParams(max_tokens=1)) for i in range(count)
    ]


async def test_what_nobody_waits_for_waits_until_it_is_quiet() -> None:
    """Test that at leisure nothing is asked while a client is served, however long that takes, and all of it once
    nobody has been for a while; and that with some patience it is asked beside the client."""
    line = Line()
    with line.supervisor.flights.admit():
        asking = asyncio.create_task(_Reader(line, Manner(1, math.inf, 0.05)).all(requests(3)))
        await _Reader(line, Manner(1, 0.2)).all(requests(1))
        assert len(line.asked) == 1
    await until(lambda: len(line.asked) == 4)
    assert len(await asking) == 3


def test_nobody_counts_canaries() -> None:
    """Test that a step is passed on without their rounds, texts and tokens, and without them among those that run."""
    seen = SimpleNamespace(steps=[])
    seen.step = seen.steps.append
    mine, began, others = f"{CANARY}-a", f"{CANARY}-b", "r"
    step = a_step(
        rounds=[a_round(mine), a_round(others)],
        outputs=[Output(id=name, tokens=[5, 5]) for name in (mine, others)] + [Output(id=began, tokens=[5])],
        running=3,
        committed=4,
    )
    Traffic([seen]).step(step)
    (told,) = seen.steps
    assert [one.request for one in told.rounds] == [one.id for one in told.outputs] == [others]
    assert (told.running, told.committed) == (1, 2)
