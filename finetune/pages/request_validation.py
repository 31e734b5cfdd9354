"""ASGI middleware that validates requests: allow-listed routes, headers and query parameters, bounded bodies, same-origin callers.

It rebuilds each request from the allowed headers and parameters and from JSON parsed here, so the application never sees invalid UTF-8,
NaN, or headers that no browser sends.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, JsonValue, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from overtone.finetune.pages.client_addresses import NO_PROXIES, TrustedProxies, find_client, find_scheme
from overtone.finetune.storage import strict_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_JSON = 2**18
"""Maximum bytes of a JSON body: more than the longest text with all characters escaped."""
CONNECTION = "connection"
"""Key of the connection (`HeldConnection`) in the state of a request, if the server limits its connections."""
HEADERS = frozenset(
    (
        *("host", "origin", "authorization", "user-agent", "content-type", "content-length"),
        *("accept", "accept-encoding", "range", "if-range", "if-none-match", "if-modified-since"),
    )
)
"""Headers that are forwarded. Any client can forge others, such as `X-Forwarded-Host`."""
LONGEST_HEADER = 4096
HOST = re.compile(r"(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
PRINTABLE = re.compile(r"[ -~]*")
Body = TypeVar("Body", bound=BaseModel)


class RequestError(HTTPException):
    """A request to answer with an error. `code`: one word for programs; the detail is a sentence."""

    def __init__(self, status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code


@dataclass(frozen=True)
class Route:
    """One allowed kind of request."""

    method: str
    """`GET` admits HEAD, too."""
    path: str
    """Regular expression of the whole decoded path."""
    query: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """Allowed query parameters with their validators."""
    largest: int = 0
    """Maximum bytes of the body."""
    check: Callable[[JsonValue], object] | None = None
    """For a JSON body: returns the value to pass on; the text of a `ValueError` becomes the response. None: not JSON."""

    def matches(self, method: str, path: str) -> bool:
        same_method = self.method == method or (self.method, method) == ("GET", "HEAD")
        return same_method and re.fullmatch(self.path, path, re.ASCII) is not None


@dataclass(frozen=True)
class Caller:
    """Headers and address of the client."""

    headers: Mapping[str, str]
    """Names in lower case."""
    address: str
    """Client address; empty if unknown."""
    path: str = ""
    """Decoded path of the request."""


class HeldConnection(Protocol):
    """A connection that may be kept when others must make room."""

    def hold(self) -> bool:
        """Keep this connection, on which a request was admitted. Returns False if too many are kept already."""


def make_json_response(rejected: RequestError) -> Response:
    """Return the error as a JSON response."""
    return JSONResponse({"detail": rejected.detail}, rejected.status_code, rejected.headers)


def add_request_guard(
    app: ASGIApp,
    routes: Sequence[Route],
    admit: Callable[[Caller], bool],
    answer: Callable[[RequestError], ASGIApp] = make_json_response,
    proxies: TrustedProxies = NO_PROXIES,
) -> ASGIApp:
    """Return `app` behind a guard that answers requests without a matching route with 404.

    `admit` raises `RequestError` for callers without access, and returns whether the connection is worth keeping when others must make
    room: False for a path that needs no token, where others do.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # websockets are not supported
            return
        try:
            headers = read_headers(scope)
            sender = read_sender(scope, proxies)
            if admit(Caller(headers, sender["client"][0], scope["path"])):
                _hold_connection(scope)
            route = find_route(routes, scope["method"], scope["path"])
            kept = {
                **scope,
                **sender,
                "headers": _encode_headers(headers),
                "query_string": _filter_query(route, scope.get("query_string", b"")),
            }
            passed = await _check_body(route, kept, headers, receive)
        except RequestError as rejected:
            await answer(rejected)(scope, receive, send)
            return
        if passed is not None:
            await app(kept, passed, send)

    return guarded


class Sender(TypedDict):
    """The entries of an ASGI scope that say who sent a request."""

    client: tuple[str, int]
    scheme: str


def read_sender(scope: Scope, proxies: TrustedProxies) -> Sender:
    """Return `client` and `scheme` of the request's ASGI scope, for a trusted proxy those of its client. Raises `RequestError` for headers
    of a trusted proxy that cannot be read."""
    peer, port = scope.get("client") or ("", 0)
    if peer not in proxies:
        return {"client": (peer, port), "scheme": scope.get("scheme", "http")}
    try:
        client = find_client(peer, _list_values(scope, b"x-forwarded-for"), proxies)
        scheme = find_scheme(_list_values(scope, b"x-forwarded-proto"), scope.get("scheme", "http"))
    except ValueError as error:
        message = f"x-forwarded-for or x-forwarded-proto of the proxy {peer} cannot be read: {error}"
        raise RequestError(400, message, "invalid_header") from error
    return {"client": (client, port if client == peer else 0), "scheme": scheme}


def _list_values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _hold_connection(scope: Scope) -> None:
    connection: HeldConnection | None = scope.get("state", {}).get(CONNECTION)
    if connection is not None and not connection.hold():
        raise RequestError(503, "too many connections are open; try again", "too_many_connections", {"retry-after": "1"})


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the allowed headers by lower-case name. Raises `RequestError` for ambiguous or malformed ones, and for a body that is
    encoded."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if name == "content-encoding" and value.lower() != "identity":
            message = f"content-encoding {value[:50]!r} is not supported; send the body as it is"
            raise RequestError(415, message, "unsupported_content_encoding", {"accept-encoding": "identity"})
        if name not in HEADERS and not name.startswith("sec-fetch-"):
            continue
        if name in headers and name in ("host", "origin", "authorization", "content-length", "content-type"):
            raise RequestError(400, f"the header {name} is there twice; send it once", "invalid_header")
        if name != "authorization" and (len(value) > LONGEST_HEADER or not PRINTABLE.fullmatch(value)):
            raise RequestError(400, f"the header {name} is too long or holds other than printable ASCII characters", "invalid_header")
        headers[name] = value
    return headers


def require_own_site(headers: Mapping[str, str], local: bool) -> None:
    """Raise `RequestError` for cross-site requests. `local`: the server accepts requests from this machine only."""
    host = headers.get("host", "")
    if (host or local) and not HOST.fullmatch(host):
        raise RequestError(400, f"host {host!r} is not the name of a server", "invalid_host")
    if local and not is_this_machine(host):  # DNS rebinding: a foreign site could resolve its name to this machine
        raise RequestError(400, f"host {host!r} is not this server's name", "invalid_host")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        raise RequestError(403, f"requests from the site {origin} are not answered", "invalid_origin")
    # Scripts and images of other sites send no origin; following a link to the page is allowed.
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        raise RequestError(403, "requests from other sites are not answered", "invalid_origin")


def is_this_machine(host: str) -> bool:
    """Return whether a `Host` header (name and port) names the loopback."""
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    return name == "localhost" or is_loopback(name)


def is_loopback(name: str) -> bool:
    """Return whether `name` is a loopback address."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def find_route(routes: Sequence[Route], method: str, path: str) -> Route:
    """Return the matching route. Raises `RequestError` (404) if there is none."""
    for route in routes:
        if route.matches(method, path):
            return route
    raise RequestError(404, f"there is no {method} {path[:200]} here", "unknown_url")


def parse_json(body: bytes) -> JsonValue:
    """Parse a JSON body. Raises `ValueError` with the reason if it is invalid."""
    try:
        return strict_json.loads(body)
    except ValueError as error:
        raise ValueError(f"the body is not JSON that can be read ({strict_json.one_line(error)})") from error


def parse_body(kind: type[Body], body: JsonValue) -> Body:
    """Return a body as a model. Raises `ValueError` with the fields that are not valid, without their values."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise ValueError("; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors())) from error


def make_size_error(largest: int) -> RequestError:
    """Return the response to a body over the limit."""
    return RequestError(413, f"the request is larger than {largest} bytes", "request_too_large")


def _encode_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on, without the token, which the application does not need."""
    kept = {name: value for name, value in headers.items() if name in HEADERS and name != "authorization"}
    return [(name.encode(), value.encode("latin-1")) for name, value in kept.items()]


def _filter_query(route: Route, query: bytes) -> bytes:
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise RequestError(400, f"the query of the address cannot be read ({error})", "invalid_query") from error
    kept = [(name, value) for name, value in given if name in route.query]
    for name, value in kept:
        if not route.query[name](value):
            raise RequestError(400, f"{name}={value[:100]!r} in the address is not valid", "invalid_query")
    return urlencode(dict(kept)).encode()


async def _check_body(route: Route, scope: Scope, headers: Mapping[str, str], receive: Receive) -> Receive | None:
    """Return the validated body for the application; None if the client disconnected. `scope` gets the length of a rebuilt body."""
    declared = headers.get("content-length", "0")
    if not re.fullmatch(r"\d{1,15}", declared, re.ASCII):
        raise RequestError(400, f"content-length {declared[:50]!r} is not a number of bytes", "invalid_header")
    if int(declared) > route.largest:
        raise make_size_error(route.largest)
    if route.check is None:
        return _limit_body(receive, route.largest)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(
            415, "a body of the type application/json is expected", "invalid_content_type"
        )  # forms of other sites cannot send this type
    body = await _read_body(receive, route.largest)
    if body is None:
        return None
    try:
        body = json.dumps(route.check(parse_json(body)), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise RequestError(400, str(error), "invalid_value") from error
    rebuilt = {b"content-length": str(len(body)).encode(), b"content-type": b"application/json"}
    scope["headers"] = [*((name, value) for name, value in scope["headers"] if name not in rebuilt), *rebuilt.items()]
    return _replay_body(body, receive)


async def _read_body(receive: Receive, largest: int) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > largest:
            raise make_size_error(largest)
        if not message.get("more_body"):
            return bytes(body)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()  # only a disconnect can follow
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _limit_body(receive: Receive, largest: int) -> Receive:
    """Count the body as it arrives, since it may not declare its length."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > largest:
            raise make_size_error(largest)
        return message

    return counted
