"""Connects this process to a Ray cluster, and detects a missing one within seconds."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from overtone.finetune.errors import UserError

REACH_SECONDS = 5.0
"""Timeout for connecting to a machine; Ray's own client would try for minutes."""


@contextmanager
def connect(address: str | None) -> Iterator[None]:
    """While open, this process is connected to the cluster at `address`: HOST:PORT, auto (the one that runs on this machine) or local (a
    new one, until this closes). Default: RAY_ADDRESS, otherwise the one on this machine, otherwise a new one. Raises `UserError` if there
    is none."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed; `pip install 'overtone[ray]'`, on every machine of the cluster")
    address = address or os.environ.get("RAY_ADDRESS")
    check_address(address)
    import ray

    try:
        ray.init(address, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at {address or 'this machine'}: {error}; start one with `ray start --head`") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_address(address: str | None) -> None:
    """Raises `UserError` for an address that cannot be reached. Ray's own names (auto, local) are accepted."""
    if address in (None, "", "auto", "local"):
        return
    assert address is not None
    if address.startswith("ray://"):
        raise UserError(f"{address}: Ray Client is not supported; run the command on a machine of the cluster, or with `ray job submit`")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(f"Ray's address {address!r} is not HOST:PORT (6379 is the usual port, 65535 the largest), auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster at {address}: {error}; start one with `ray start --head` on that machine") from None
