"""Tests of `overtone.recipes.speech.serving.uploads`: one file of limited size, without the client's file name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request

from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import RequestError, add_request_guard
from overtone.recipes.speech.serving import uploads
from overtone.recipes.speech.serving.uploaded_clips import LARGEST, Clips
from overtone.recipes.speech.serving.uploads import FORM_OVERHEAD, ROUTE, serve_uploads
from tests.asgi import HOME, Answer, ask

FORM = (b"content-type", b"multipart/form-data; boundary=x")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clips]:
    clips = Clips(tmp_path_factory.mktemp("uploads"))
    yield clips
    clips.close()


@pytest.fixture(scope="module")
def app(clips: Clips) -> Any:
    return add_request_guard(Starlette(routes=[serve_uploads(clips)]), (ROUTE,), lambda _: True)


def form(content: bytes, name: bytes = b"a.flac", field: bytes = b"files") -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n%b\r\n--x--\r\n' % (field, name, content)


def send(app: Any, body: bytes | list[bytes | None], *headers: tuple[bytes, bytes]) -> Answer:
    return ask(app, "POST", "/clip", body, (HOME, *(headers or (FORM,))))


def test_a_file_is_saved_unchanged(app: Any, clips: Clips) -> None:
    answer = send(app, form(b"sound \x00\xff"))
    path = json.loads(answer.body)["clip"]
    assert answer.status == 200 and clips.find(path) == Path(path) and Path(path).read_bytes() == b"sound \x00\xff"


@pytest.mark.parametrize(
    "name", [b"a\r\nX-Evil: 1", b"a\nb", b"a\rb", b"..\\..\\x", b"\xed\xa0\x80.wav", b"\xff.flac", b"a\x00.wav", b"/etc/passwd"]
)
def test_hostile_file_names_are_harmless(name: bytes, app: Any, clips: Clips) -> None:
    answer = send(app, form(b"x", name))
    assert answer.status in (200, 400)
    if answer.status == 200:
        path = json.loads(answer.body)["clip"]
        assert clips.find(path) is not None and Path(path).stem == "clip"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", (FORM,), 400),
        (b"abc", (FORM,), 400),
        (form(b"x"), ((b"content-type", b"multipart/form-data"),), 400),
        (form(b"x"), ((b"content-type", b"text/plain"),), 400),
        (form(b"x"), ((b"content-type", b"multipart/form-data; boundary=x; charset=utf-7"),), 200),
        (form(b"x", field=b"other"), (FORM,), 400),
        (form(b"x")[:-7] + form(b"y"), (FORM,), 400),
        (b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\nno file\r\n--x--\r\n', (FORM,), 400),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--x--\r\n", (FORM,), 400),
        (form(b"x"), (FORM, (b"content-length", b"%d" % (LARGEST + FORM_OVERHEAD + 1))), 413),
    ],
)
def test_other_forms_are_refused(body: bytes, headers: Any, status: int, app: Any) -> None:
    assert send(app, body, *headers).status == status


def test_a_body_without_a_length_is_limited(app: Any) -> None:
    pieces = [form(b"x" * 2**20)[:-7], *[b"x" * 2**20] * 16]
    assert send(app, pieces).status == 413


def test_a_client_that_disconnects_is_no_error_of_the_server() -> None:
    """So ends an upload that takes too long (`finetune/pages/connection_limits.py`), too."""
    pieces = [{"type": "http.request", "body": form(b"x")[:9], "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [FORM]}
    with pytest.raises(RequestError, match="the client disconnected"):
        asyncio.run(uploads.read_form(Request(scope, receive)))


def test_a_full_disk_is_reported(app: Any, clips: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise UserError("the disk is full")

    monkeypatch.setattr(clips, "keep", full)
    answer = send(app, form(b"x"))
    assert answer.status == 503 and b"the disk is full" in answer.body


@settings(max_examples=450, deadline=None)
@given(body=st.binary(max_size=40), head=st.binary(max_size=20), kind=st.binary(max_size=30), name=st.binary(max_size=8), data=st.data())
def test_any_form_is_answered_without_a_server_error(
    app: Any, body: bytes, head: bytes, kind: bytes, name: bytes, data: st.DataObject
) -> None:
    media_type = data.draw(st.sampled_from([b"multipart/form-data; boundary=x", b"multipart/form-data; " + kind, kind]))
    for content in (body, b"--x\r\n" + head + b"\r\n\r\n" + body + b"\r\n--x--", form(body, name)):
        assert 200 <= send(app, content, (b"content-type", media_type)).status < 500


def test_a_file_of_the_size_limit_is_accepted_and_a_larger_one_is_rejected(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGEST", 100)
    assert [send(app, form(b"x" * size)).status for size in (100, 101)] == [200, 413]
