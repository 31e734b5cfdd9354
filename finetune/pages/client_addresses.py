"""Finds the address of the client that sent a request, also through a proxy. Only proxies that the user named may name a client."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overtone.finetune.errors import UserError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
OPTION = "--trusted-proxy"


@dataclass(frozen=True)
class TrustedProxies:
    """Networks whose machines may send `X-Forwarded-For` and `X-Forwarded-Proto`. Without any, no machine may."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def __contains__(self, address: str) -> bool:
        try:
            found = parse_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.networks)


NO_PROXIES = TrustedProxies()


def parse_proxies(values: Iterable[str]) -> TrustedProxies:
    """Return the values of `--trusted-proxy`: addresses or networks. Raises `UserError` for any other."""
    networks = []
    for value in values:
        try:
            network = ipaddress.ip_network(value)
        except ValueError as error:
            raise UserError(
                f"{OPTION} {value} is neither an address nor a network ({error}); give for example 10.0.0.5 or 10.0.0.0/24"
            ) from error
        if network.prefixlen == 0:
            raise UserError(f"{OPTION} {value} is every address, so that any client could pretend to be another; name the proxies only")
        networks.append(network)
    return TrustedProxies(tuple(networks))


def parse_address(text: str) -> Address:
    """Return an address; for an IPv4 client of an IPv6 socket, its IPv4 address. Raises `ValueError`."""
    address = ipaddress.ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def group_address(address: str) -> str:
    """Return the key of a client: its IPv4 address, or its IPv6 /64 network, because one machine can use a whole network."""
    try:
        found = parse_address(address)
    except ValueError:
        return address
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found.packed, 64), strict=False))


def find_client(peer: str, forwarded: Sequence[str], proxies: TrustedProxies) -> str:
    """Return the address of the client of a request that `peer` sent with these `X-Forwarded-For` headers.

    Each proxy appends the address that it was called from, so the headers are read from their end: the client is the first address that no
    trusted proxy has. Everything before it may be forged and is not read. Raises `ValueError` for a text that is read and is no address.
    """
    hops = [hop for value in forwarded for hop in map(str.strip, value.split(",")) if hop]
    address = peer
    while hops and address in proxies:
        address = read_hop(hops.pop())
    return address


def read_hop(hop: str) -> str:
    """Return an address of `X-Forwarded-For`, without the port that some proxies append. Raises `ValueError`."""
    bracketed, with_port = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d{1,5})?", hop), re.fullmatch(r"([0-9.]+):\d{1,5}", hop)
    found = bracketed or with_port
    text = found[1] if found else hop
    if "%" in text:
        raise ValueError(f"{hop!r} has a scope")
    return str(parse_address(text))


def find_scheme(forwarded: Sequence[str], scheme: str) -> str:
    """Return `http` or `https`, which the client used: by the `X-Forwarded-Proto` of a trusted proxy, or `scheme` without any. Raises
    `ValueError` for another value."""
    if not forwarded:
        return scheme
    found = forwarded[-1].rpartition(",")[2].strip().lower()
    if found not in ("http", "https"):
        raise ValueError(f"{found!r} is neither http nor https")
    return found
