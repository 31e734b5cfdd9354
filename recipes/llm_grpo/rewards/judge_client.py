"""Asks a model at an OpenAI-compatible address to rate an answer."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.request
from typing import Any

from overtone.finetune.storage import strict_json
from overtone.recipes.llm_grpo.options import Judge
from overtone.recipes.llm_grpo.rewards.answer_checks import NUMBER, RewardError

LARGEST_REPLY = 2**20
"""Bytes."""
HIGHEST = 10.0
"""Best rating."""


def judge_answer(judge: Judge, prompt: str, answer: str, expected: object) -> float:
    """Return the rating of an answer from 0 to 1. `expected`: the row's `answer`, or None. Raises `RewardError` without one in time."""
    reference = "" if expected is None else f"\n\nExpected answer:\n{expected}"
    messages = [
        {"role": "system", "content": judge.instruction},
        {"role": "user", "content": f"Task:\n{prompt}{reference}\n\nAnswer:\n{answer}"},
    ]
    body = json.dumps({"model": judge.model, "messages": messages, "temperature": 0, "max_tokens": 64}).encode()
    key = os.environ.get(judge.key_variable)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    address = f"{judge.url.rstrip('/')}/chat/completions"
    request = urllib.request.Request(address, body, headers)  # noqa: S310 - `Judge.url` is of http or https
    try:
        reply = strict_json.loads(_read(request, judge.seconds))
        text = str(reply["choices"][0]["message"]["content"])
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RewardError(f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from None
    except (KeyError, IndexError, TypeError):
        raise RewardError("the reply has no choices[0].message.content") from None
    return read_rating(text)


def read_rating(text: str) -> float:
    """Return the last number of a reply, from 0 to 10, divided by 10. Raises `RewardError` without such a number."""
    found = NUMBER.findall(text)
    rating = float(found[-1].replace(",", "")) if found else -1.0
    if not 0 <= rating <= HIGHEST:
        raise RewardError(f"the reply has no number from 0 to {HIGHEST:g}: {text!r:.60}")
    return rating / HIGHEST


def _read(request: urllib.request.Request, seconds: float) -> bytes:
    """The body of the response. Raises `OSError` or `ValueError` if it does not come in time, or is too large."""
    deadline, found = time.monotonic() + seconds, bytearray()
    opener: Any = urllib.request.build_opener(_WithoutRedirects)
    with opener.open(request, timeout=seconds) as response:
        while part := response.read1(2**16):
            found += part
            if len(found) > LARGEST_REPLY:
                raise ValueError(f"the reply has more than {LARGEST_REPLY:,} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the reply had not ended after {seconds:g} s")
    return bytes(found)


class _WithoutRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: one would send the key to another address."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none."""
