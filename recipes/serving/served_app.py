"""The app that all servers share: access control, counted requests, routes that report its state; its address, and how it is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI
from starlette.middleware import Middleware

from overtone.finetune.pages import web_server
from overtone.finetune.pages.request_validation import Route, add_request_guard
from overtone.finetune.terminal import print_line

from . import draining_server
from .access_control import AccessControl, AccessPolicy, load_access_policy
from .api_errors import to_refusal
from .draining_server import DrainableQueue, DrainingServer
from .server_options import Address


class ServedQueue(DrainableQueue, Protocol):
    """The part of a queue that running a server needs."""

    @property
    def pending(self) -> int: ...

    def refuse_new(self) -> None: ...

    def fail_waiting(self) -> None: ...


def make_app(
    queue: DrainableQueue,
    policy: AccessPolicy,
    routes: Sequence[Route],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """The app with the routes of the server's status. `routes`: the other requests that are admitted; the caller adds what answers them."""
    middleware = [
        Middleware(queue.metrics.count_responses),
        Middleware(web_server.add_security_headers),
        Middleware(
            add_request_guard,
            routes=(*routes, *draining_server.ROUTES),
            admit=AccessControl(policy, public=frozenset({draining_server.HEALTH})).admit,
            answer=lambda rejected: to_refusal(rejected).response(),
            proxies=policy.proxies,
        ),
    ]
    app = FastAPI(middleware=middleware, docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.include_router(draining_server.status_routes(queue))
    return app


@dataclass(frozen=True)
class ServerAccess:
    """The free address of a server, and the conditions for its requests."""

    address: Address
    policy: AccessPolicy
    drain_seconds: float
    """Longest time to complete waiting requests when the server stops."""

    @contextmanager
    def open_session(self) -> Iterator[Path]:
        """The private folder of the server, for its temporary files; it is removed at the end. Enter it before models are loaded, so that
        the message that the server has stopped comes after they are closed."""
        with web_server.open_private_folder(f"overtone-serve-{self.address.host}-{self.address.port}") as folder:
            yield folder
        print_line("serve: stopped")

    def run(self, app: FastAPI, queue: ServedQueue, entry: str, more: str = "") -> None:
        """Serve until SIGTERM or Ctrl-C. `entry`: the address that is printed first; `more`: what follows it."""
        make_server = partial(
            DrainingServer,
            is_busy=lambda: queue.pending + queue.metrics.open_calls > 0,
            refuse_new=queue.refuse_new,
            fail_waiting=queue.fail_waiting,
            drain_seconds=self.drain_seconds,
        )
        protection = ", protected by a token" if self.policy.token else ""
        announcement = f"serve: {entry}{protection}{more}   (stop with Ctrl-C)"
        web_server.run_server(app, self.address.host, self.address.port, announcement, make_server, self.policy.proxies)


def check_access(args: argparse.Namespace) -> ServerAccess:
    """Address and access by the options of `add_server_options`. Raises `UserError` if the address is taken, or if it would admit other
    machines without a token."""
    policy = load_access_policy(args.host, args.token_file, args.trusted_proxy)
    web_server.require_free_port(args.port, args.host)
    return ServerAccess(Address(args.host, args.port), policy, args.drain_seconds)
