"""The app that all servers share: access control, counted requests, and the routes that report its state; and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from fastapi import FastAPI
from starlette.middleware import Middleware

from overtone.data_prep.pages import web_server
from overtone.data_prep.pages.request_validation import Route, add_request_guard

from . import draining_server
from .access_control import AccessControl, AccessPolicy
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


def run_app(
    app: FastAPI, queue: ServedQueue, address: Address, policy: AccessPolicy, drain_seconds: float, entry: str, more: str = ""
) -> None:
    """Serve until SIGTERM or Ctrl-C. `entry`: the address that is printed first; `more`: what follows it."""
    make_server = partial(
        DrainingServer,
        is_busy=lambda: queue.pending + queue.metrics.open_calls > 0,
        refuse_new=queue.refuse_new,
        fail_waiting=queue.fail_waiting,
        drain_seconds=drain_seconds,
    )
    protection = ", protected by a token" if policy.token else ""
    announcement = f"serve: {entry}{protection}{more}   (stop with Ctrl-C)"
    web_server.run_server(app, address.host, address.port, announcement, make_server, policy.proxies)
