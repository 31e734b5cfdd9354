"""Refusals have the shape that OpenAI's clients read."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from recipes.voice_clone.serving_api import SpeechCall
from recipes.voice_clone.serving_errors import Refusal, of_validation


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
def test_the_shape(status: int, kind: str) -> None:
    answer = Refusal(status, "no", "some_code", "voice").response()
    assert answer.status_code == status
    assert json.loads(answer.body) == {"error": {"message": "no", "type": kind, "param": "voice", "code": "some_code"}}
    assert ("retry-after" in answer.headers) == (status == 429)
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_everything_that_pydantic_found_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        SpeechCall.model_validate({"model": "a", "input": 3, "voice": "b", "loudness": 4})
    refusal = of_validation([{**problem, "loc": ("body", *problem["loc"])} for problem in caught.value.errors()])
    assert refusal.status_code == 400 and refusal.param == "input"
    assert refusal.detail == "input: Input should be a valid string; loudness: Extra inputs are not permitted"
