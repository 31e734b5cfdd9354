"""Command-line options that every server has, and its address. Must not import torch: `serve --help` reads them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.pages import web_server


@dataclass(frozen=True)
class Address:
    """Host and port of the server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def add_address_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options of address and access. `port`: the default."""
    parser.add_argument("--host", default=web_server.LOOPBACK, help="address to listen on (default %(default)s: only this machine)")
    parser.add_argument("--port", type=int, default=port, help="port to listen on (default %(default)s)")
    parser.add_argument("--token-file", type=Path, help="file with a token that clients must send; or set OVERTONE_TOKEN")
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="proxy, or network of proxies, whose X-Forwarded-For and X-Forwarded-Proto are believed; may be given more than once",
    )


def add_server_options(parser: argparse.ArgumentParser, batch: bool = True) -> None:
    """Add the options of address, access, queue and deadlines. `batch` False: for models that take one request at a time."""
    add_address_options(parser, 7861)
    if batch:
        parser.add_argument("--batch", type=int, default=8, help="requests that a model generates at once (default %(default)s)")
    parser.add_argument("--queue", type=int, default=16, help="maximum number of waiting requests of a model (default %(default)s)")
    parser.add_argument(
        "--deadline-seconds",
        type=float,
        default=300.0,
        help="longest time of a request, until its client has read it (%(default)g)",
    )
    parser.add_argument(
        "--drain-seconds", type=float, default=25.0, help="longest time after SIGTERM to complete waiting requests (default %(default)g)"
    )


def check_server_options(args: argparse.Namespace, positive: Collection[str]) -> None:
    """Raises `UserError` for a number that is too small. `positive`: further options that must be at least 1."""
    web_server.require_port(args.port)
    for option in ("queue", "deadline_seconds", "drain_seconds", *(["batch"] if hasattr(args, "batch") else []), *positive):
        if not getattr(args, option) >= (0 if option in ("queue", "drain_seconds") else 1):
            raise UserError(f"--{option.replace('_', '-')} {getattr(args, option):g} is too small; omit the option to use the default")


def require_packages(names: Collection[str], requirement: str, verb: str = "serve") -> None:
    """Raises `UserError` if one of these packages, which `verb` needs, is missing. `requirement`: what to install, as `overtone[serve]`."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{verb} needs {', '.join(missing)}, which is not installed; install with: pip install '{requirement}'")
