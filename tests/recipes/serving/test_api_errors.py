"""Tests of `overtone.recipes.serving.api_errors`."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from overtone.finetune.pages.request_validation import RequestError
from overtone.recipes.serving.api_errors import Refusal, to_refusal, validation_refusal
from overtone.recipes.speech.serving.openai_api import SpeechCall


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
    ],
)
def test_errors_have_the_format_of_openai(status: int, kind: str) -> None:
    answer = Refusal(status, "no", "some_code", "voice").response()
    assert answer.status_code == status
    assert json.loads(answer.body) == {"error": {"message": "no", "type": kind, "param": "voice", "code": "some_code"}}
    assert ("retry-after" in answer.headers) == (status == 429)
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_every_validation_error_is_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        SpeechCall.model_validate({"model": "a", "input": 3, "voice": "b", "loudness": 4})
    refusal = validation_refusal([{**problem, "loc": ("body", *problem["loc"])} for problem in caught.value.errors()])
    assert refusal.status_code == 400 and refusal.param == "input"
    assert refusal.detail == "input: Input should be a valid string; loudness: Extra inputs are not permitted"


def test_a_body_that_is_not_json_is_named() -> None:
    problem = {"type": "json_invalid", "loc": ("body", 17), "msg": "JSON decode error", "ctx": {"error": "Expecting value"}}
    error = json.loads(validation_refusal([problem]).response().body)["error"]
    assert (error["param"], error["code"]) == (None, "invalid_json")
    assert error["message"] == "the body is not JSON (Expecting value, after 17 characters); send one JSON object"


def test_rejections_of_the_guard_are_converted() -> None:
    answer = to_refusal(RequestError(429, "wait", "too_many_attempts", {"retry-after": "60"})).response()
    error = json.loads(answer.body)["error"]
    assert (answer.status_code, answer.headers["retry-after"], error["code"]) == (429, "60", "too_many_attempts")
    assert json.loads(to_refusal(HTTPException(404)).response().body)["error"]["message"] == "Not Found"
    refusal = Refusal(400, "no")
    assert to_refusal(refusal) is refusal


def test_a_lone_surrogate_in_a_message_is_escaped() -> None:
    answer = Refusal(400, "no \ud800", None, "\udfff").response()
    assert json.loads(answer.body)["error"] == {"message": "no \\ud800", "type": "invalid_request_error", "param": "\\udfff", "code": None}
