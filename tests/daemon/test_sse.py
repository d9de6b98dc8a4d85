"""Events as they are written, and outputs on their way to whoever writes them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Output
from specd.flights import Flight, Refusal, UnservedError
from specd.http.choice import Said
from specd.http.shapes import ChatShape, CompletionShape, Head
from specd.http.sse import EventStream, Mould

HEAD = Head("cmpl-1", 7, 'a "model" \\ {text}')


async def written(payload: object) -> bytes:
    sent: list[bytes] = []

    async def send(message) -> None:
        sent.append(message["body"])

    await EventStream(send).event(payload)
    return b"".join(sent)


@pytest.mark.parametrize("shape", [CompletionShape(), ChatShape()])
def test_a_mould_writes_what_would_be_written_without_it(shape) -> None:
    """Test that it is the same to the byte for any text, quotes, controls and characters of every size included."""

    def payload(text: str) -> dict:
        return HEAD.wrap(
            shape.chunk_kind, [{"index": 0, **shape.chunk(Said(text), 0), "finish_reason": None}]
        )

    mould = Mould(payload)

    @given(st.text(min_size=1))
    def same(text: str) -> None:
        assert mould.event(text) == asyncio.run(written(payload(text)))

    same()


def flight() -> Flight:
    return Flight(tenant="t", admitted=0.0, release=lambda _: None)


async def test_a_reader_that_gives_up_loses_nothing() -> None:
    """Test that an output which comes after, or together with, the end of a reader's patience is there for the next."""
    one = flight()
    for tokens in ([1], [2]):
        reading = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        if tokens == [2]:
            one.put(Output(id="r", tokens=tokens))
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        if tokens == [1]:
            one.put(Output(id="r", tokens=tokens))
        assert (await one.next()).tokens == tokens
    assert one.unread == 0


async def test_a_reader_is_woken_by_outputs_in_order_and_by_a_refusal() -> None:
    """Test that what comes while nobody reads waits in order, and that a refusal is the last."""
    one = flight()
    reading = asyncio.ensure_future(one.next())
    await asyncio.sleep(0)
    for number in range(3):
        one.put(Output(id="r", tokens=[number]))
    assert [(await reading).tokens, *[(await one.next()).tokens for _ in range(2)]] == [[0], [1], [2]]
    one.put(Refusal("no", "no"))
    with pytest.raises(UnservedError):
        await one.next()
    assert one.done
