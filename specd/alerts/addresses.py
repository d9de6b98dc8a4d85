"""Connections that lead only where they may. The address that a name resolves to is checked, at each connection.

A look at the URL's text would not do: 2130706433, 0x7f.1, [::ffff:127.0.0.1] and a name that somebody has pointed at
127.0.0.1 are all loopback.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any, Final

import httpcore2
import httpx2


class PrivateAddressError(httpcore2.ConnectError):
    """The name leads to this machine or into a private network."""


_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet at large."""
    found = _meant(ipaddress.ip_address(address.partition("%")[0]))
    return found.is_global and not found.is_multicast


def _meant(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address within, where packets would be led to that."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class PublicOnly(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses only: resolves the name once, and connects to what it has checked."""

    def __init__(self) -> None:
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the library's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises `PrivateAddressError` where any of the name's addresses is not public."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(f"the name does not resolve: {error}") from None
        addresses = [str(one[4][0]) for one in found]
        private = [address for address in addresses if not is_public(address)]
        if private:
            raise PrivateAddressError(f"it leads to {private[0]}, and private_addresses is false")
        return await self._backend.connect_tcp(addresses[0], port, timeout, local_address, socket_options)


def client(*, private: bool) -> httpx2.AsyncClient:
    """A client that follows no redirects and keeps no time: whoever uses it does.

    One that may not lead to private addresses goes through no proxy, which would resolve names elsewhere.
    """
    if private:
        return httpx2.AsyncClient(follow_redirects=False, timeout=None)
    transport = httpx2.AsyncHTTPTransport()
    # The one way to hand a network backend to the pool beneath the transport.
    transport._pool._network_backend = PublicOnly()  # noqa: SLF001
    return httpx2.AsyncClient(follow_redirects=False, timeout=None, transport=transport)
