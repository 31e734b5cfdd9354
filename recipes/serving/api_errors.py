"""Error responses in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from overtone.finetune.pages.request_validation import RequestError

RETRY_AFTER = 2
"""Seconds after which a client should retry if the queue is full, or the server is shutting down."""
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
LOGIN = {"www-authenticate": 'Basic realm="overtone", charset="UTF-8"'}
"""Header that makes a browser request the token as a password."""


class Refusal(HTTPException):
    """An error response."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`param`: name of the invalid field of the request."""
        retry = {"retry-after": str(RETRY_AFTER)}
        super().__init__(status, message, {401: LOGIN, 429: retry, 503: retry}.get(status, {}) | dict(headers or {}))
        self.code, self.param = code, param

    def content(self) -> dict[str, Any]:
        """The body of the response."""
        kind = TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        # Some messages quote the client's text, which may contain a lone surrogate, and UTF-8 cannot encode that.
        error = {"message": _encodable(self.detail), "type": kind, "param": self.param and _encodable(self.param), "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.content(), self.status_code, self.headers)


def to_refusal(rejected: HTTPException) -> Refusal:
    """Convert another HTTP error into this format."""
    if isinstance(rejected, Refusal):
        return rejected
    code = rejected.code if isinstance(rejected, RequestError) else None
    return Refusal(rejected.status_code, rejected.detail, code, headers=rejected.headers)


def validation_refusal(problems: Sequence[Any]) -> Refusal:
    """Return one refusal for all validation errors of a request. `param` is the field of the first error; it is None for a body that is not
    JSON."""
    if problems[0]["type"] == "json_invalid":
        place, reason = problems[0]["loc"][-1], problems[0]["ctx"]["error"]
        return Refusal(400, f"the body is not JSON ({reason}, after {place} characters); send one JSON object", "invalid_json")
    messages = [f"{_field_of(problem)}: {problem['msg']}" for problem in problems]
    return Refusal(400, "; ".join(messages), "invalid_value", _field_of(problems[0]))


def _field_of(problem: Any) -> str:
    return ".".join(str(part) for part in problem["loc"] if part != "body") or "body"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
