"""The HTTP server that completes its requests after SIGTERM, and the route that reports its state to load balancers, `GET /health`."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import prometheus_client
import uvicorn
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from overtone.finetune.pages.request_validation import Route
from overtone.finetune.terminal import print_line

from .prometheus_metrics import ServerMetrics

HEALTH = "/health"
ROUTES = (Route("GET", HEALTH), Route("GET", "/metrics"))
POLL_SECONDS = 0.1


class DrainingServer(uvicorn.Server):
    """A server that, after SIGTERM, refuses new requests and completes those in the queue, for at most `drain_seconds`. Meanwhile it still
    answers other paths, so that a load balancer can read its state. Ctrl-C ends the wait at once. Then clients with incomplete requests are
    informed that the server is shutting down."""

    def __init__(
        self,
        config: uvicorn.Config,
        is_busy: Callable[[], bool],
        refuse_new: Callable[[], None],
        fail_waiting: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        """`is_busy`: whether a request is not yet complete. `refuse_new`: called once, when draining starts. `fail_waiting`: called once,
        in a thread, after the wait; fails the requests that are not complete."""
        super().__init__(config)
        self._is_busy, self._refuse_new, self._fail_waiting = is_busy, refuse_new, fail_waiting
        self._drain_seconds = drain_seconds
        self._terminated = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._terminated = self._terminated or sig == signal.SIGTERM
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._terminated:
            await self._drain()
        await asyncio.to_thread(self._fail_waiting)  # before uvicorn cancels them: clients would get a 500, and the log its traceback
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        self._refuse_new()
        if not self._is_busy():
            return
        print_line(f"serve: completing the requests in the queue, for at most {self._drain_seconds:g} s (Ctrl-C stops at once)")
        deadline = time.monotonic() + self._drain_seconds
        while self._is_busy() and time.monotonic() < deadline and not self.force_exit:
            await asyncio.sleep(POLL_SECONDS)


class DrainableQueue(Protocol):
    """The part of a queue that the server's status needs."""

    @property
    def draining(self) -> bool: ...

    @property
    def metrics(self) -> ServerMetrics: ...


def status_routes(queue: DrainableQueue) -> APIRouter:
    """Return the routes `/health`, which answers 200 while new requests are accepted and then 503, and `/metrics`, in Prometheus' text
    format."""
    router = APIRouter()

    @router.api_route(HEALTH, methods=["GET", "HEAD"])
    async def health() -> Response:
        return JSONResponse({"status": "draining"}, 503) if queue.draining else JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def read_metrics() -> Response:
        text = prometheus_client.generate_latest(queue.metrics.registry)
        return Response(text, media_type=prometheus_client.exposition.CONTENT_TYPE_PLAIN_0_0_4)

    return router
