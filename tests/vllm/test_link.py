"""The socket between vLLM's scheduler and whoever looks after it. No vLLM is needed here."""

import asyncio

from engine.api import Configure, DraftSettings, FromEngine
from engine.vllm.link import Link, Listener
from policies.settings import PolicySettings
from tests.messages import a_ready, a_report

_HELLO = a_ready()


class _Heard(list[FromEngine]):
    """What was heard, and a way to wait for it."""

    def __init__(self):
        super().__init__()
        self._more = asyncio.Event()

    def hear(self, message):
        self.append(message)
        self._more.set()

    async def first(self, count):
        while len(self) < count:
            self._more.clear()
            await self._more.wait()
        return self[:count]


def _orders(k_max):
    return Configure(policy=PolicySettings(k_max=k_max), draft=DraftSettings())


async def _received(link):
    while not (found := link.received()):  # noqa: ASYNC110  a scheduler looks at each step, and waits for nothing
        await asyncio.sleep(0)
    return found


async def test_a_scheduler_says_who_it_is_and_then_reports_every_step(tmp_path):
    heard = _Heard()
    async with Listener(tmp_path / "s", heard.hear):
        link = Link(str(tmp_path / "s"), _HELLO)
        link.send(a_report(1))
        link.send(a_report(2))
        assert await heard.first(3) == [_HELLO, a_report(1), a_report(2)]
        link.close()


async def test_orders_reach_who_is_there_and_who_comes_later(tmp_path):
    heard = _Heard()
    async with Listener(tmp_path / "s", heard.hear) as listener:
        early = Link(str(tmp_path / "s"), _HELLO)
        await heard.first(1)
        listener.configure(_orders(3))
        assert await _received(early) == [_orders(3)]
        late = Link(str(tmp_path / "s"), _HELLO)
        assert await _received(late) == [_orders(3)]
        early.close()
        late.close()


async def test_without_a_listener_reports_are_lost_and_it_is_found_once_it_is_there(tmp_path):
    now = [0.0]
    link = Link(str(tmp_path / "s"), _HELLO, clock=lambda: now[0])
    link.send(a_report(1))
    assert link.lost == 1
    assert link.received() == []
    heard = _Heard()
    async with Listener(tmp_path / "s", heard.hear):
        link.send(a_report(2))  # too early for another try
        now[0] = 2.0
        link.send(a_report(3))
        assert await heard.first(2) == [_HELLO, a_report(3)]
        assert link.lost == 2
    now[0] = 4.0
    while link.is_connected:  # it notices by what it reads or sends
        link.received()
        await asyncio.sleep(0)
    link.send(a_report(4))
    assert link.lost == 3


async def test_a_listener_that_reads_nothing_does_not_hold_a_step_up(tmp_path):
    server = await asyncio.start_unix_server(lambda reader, writer: None, tmp_path / "s")
    link = Link(str(tmp_path / "s"), _HELLO)
    for step in range(60_000):
        link.send(a_report(step))
        if link.lost:
            break
    assert link.lost, "what is not read must not pile up without end"
    link.close()
    server.close()


async def test_a_scheduler_that_leaves_is_noticed(tmp_path):
    left = asyncio.Event()
    heard = _Heard()
    async with Listener(tmp_path / "s", heard.hear, left.set) as listener:
        link = Link(str(tmp_path / "s"), _HELLO)
        await heard.first(1)
        assert listener.connected == 1
        link.close()
        await left.wait()
        assert listener.connected == 0
