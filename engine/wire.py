"""Frames between daemon and engine: a little-endian 32-bit length, then one msgpack message of `engine.api`."""

import asyncio
import socket
import struct
from typing import Final

import msgspec

from engine.api import FromEngine, ToEngine

_LENGTH: Final = struct.Struct("<I")
_MAX_FRAME: Final = 256 << 20
_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


class WireError(Exception):
    """The peer sent what is not a frame of this protocol; the connection is of no more use."""


def frame(message: ToEngine | FromEngine) -> bytes:
    """One message as it goes over the socket."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def _checked_length(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > _MAX_FRAME:
        raise WireError(f"a frame of {length} bytes is beyond the limit of {_MAX_FRAME}")
    return int(length)


async def read_from_engine(reader: asyncio.StreamReader) -> FromEngine:
    """Next message of the engine. Raises `asyncio.IncompleteReadError` when the engine has gone."""
    length = _checked_length(await reader.readexactly(_LENGTH.size))
    return _from_engine.decode(await reader.readexactly(length))


async def next_to_engine(reader: asyncio.StreamReader) -> ToEngine | None:
    """Next message of the daemon, for an engine with an event loop. None when the daemon has gone."""
    try:
        length = _checked_length(await reader.readexactly(_LENGTH.size))
        return _to_engine.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def read_to_engine(sock: socket.socket) -> ToEngine | None:
    """Next message of the daemon, blocking. None when the daemon has gone."""
    header = _read_exactly(sock, _LENGTH.size)
    if header is None:
        return None
    body = _read_exactly(sock, _checked_length(header))
    return None if body is None else _to_engine.decode(body)


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
