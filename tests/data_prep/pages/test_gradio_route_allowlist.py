"""Which routes of gradio are open, and which values a call may contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from overtone.data_prep.pages.gradio_route_allowlist import ResetCall, add_files, list_page_routes, rebuild_call, refuse_uploads
from tests.asgi import ask


@pytest.fixture(scope="module")
def page() -> Any:
    import gradio

    with gradio.Blocks() as page:
        text, sound = gradio.Textbox(), gradio.Audio(type="filepath")
        gradio.Button().click(lambda text, sound: text, [text, sound], text)
    return page


def call(*data: Any, **other: Any) -> dict[str, Any]:
    return {"data": list(data), "fn_index": 0, "session_hash": "abc123"} | other


def test_a_call_is_rebuilt_from_what_the_page_sends(page: Any, tmp_path: Path) -> None:
    sound = tmp_path / "a.flac"
    file = {"path": str(sound), "url": "http://attacker.example/a", "orig_name": "a\r\nb", "meta": {"_type": "gradio.FileData"}}
    body = call("hello", file, event_data={"x": 1}, simple_format=True, batched=True, event_id="e", trigger_id=10**9)
    made = rebuild_call(page, {str(sound): sound}.get, body)
    assert made == call("hello", {"path": str(sound), "meta": {"_type": "gradio.FileData"}}, trigger_id=None)
    button = next(number for number, block in page.blocks.items() if block.get_block_name() == "button")
    assert rebuild_call(page, refuse_uploads, call("hello", None, trigger_id=button))["trigger_id"] == button


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (call("a", {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}), "the file was not uploaded"),
        (call({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, None), "a textbox sends a string, not {'path': '/etc"),
        (call(True, None), "a textbox sends a string, not True"),
        (call("a", "/etc/passwd"), "the file was not uploaded"),
        (call("a", {"url": "http://127.0.0.1:1/x.wav"}), "the file was not uploaded"),
        (call("a", [[{"path": "/etc/passwd"}]]), "the file was not uploaded"),
        (call("a"), "2 values expected, got 1"),
        (call("a", None, fn_index=7), "fn_index 7: the page has no such function"),
        (call("a", None, fn_index=10**30), "no such function"),
        (call("a", None, session_hash="../x"), "session_hash: String should match"),
        (call("a", None, session_hash="x" * 65), "session_hash: String should match"),
        (call("a", None, session_hash=None), "session_hash: Input should be a valid string"),
        ({"data": []}, "fn_index: Field required; session_hash: Field required"),
        ([1], "body: Input should be"),
    ],
)
def test_calls_that_no_page_sends_are_refused(page: Any, body: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rebuild_call(page, refuse_uploads, body)


def test_values_must_have_the_type_of_their_component() -> None:
    import gradio

    with gradio.Blocks() as page:
        parts = [gradio.State([]), gradio.Number(precision=0), gradio.Slider(), gradio.Checkbox(), gradio.Dropdown(["a"])]
        gradio.Button().click(lambda *values: None, parts, None)
    good = ["ignored", 3, 0.5, True, "a"]
    assert rebuild_call(page, refuse_uploads, call(*good))["data"] == [None, *good[1:]]
    cleared = [None, None, 0.5, False, None]
    assert rebuild_call(page, refuse_uploads, call(*cleared))["data"] == cleared
    for at, bad in ((2, None), (3, None), (1, "3"), (1, True), (2, []), (3, 1), (4, 1), (4, {"path": "/etc/passwd"})):
        with pytest.raises(ValueError, match="reload the page"):
            rebuild_call(page, refuse_uploads, call(*good[:at], bad, *good[at + 1 :]))


def test_only_sessions_with_pending_messages_may_stream_data(page: Any) -> None:
    (data,) = [route for route in list_page_routes(page) if route.path.endswith("queue/data")]
    assert not data.query["session_hash"]("abc123")
    page._queue.pending_messages_per_session["abc123"] = None
    assert data.query["session_hash"]("abc123")


def test_exactly_nine_routes_are_open(page: Any) -> None:
    there = ["/", "/theme.css", "/assets/index-1a2B.js", "/gradio_api/file=/tmp/a", "/gradio_api/heartbeat/x", "/gradio_api/queue/data"]
    there += ["/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset"]
    routes = list_page_routes(page)
    assert [next(route for route in routes if route.matches(route.method, path)) for path in there] == list(routes)
    assert all(routes[at].matches("GET", path) for at, path in ((1, "/favicon.ico"), (2, "/static/js/a.min.js")))
    for path in ("/assets/../x", "/assets/.hidden", "/static//x", "/assets/", "/gradio_api/file=", "/gradio_api/heartbeat/a/b"):
        assert not any(route.matches("GET", path) for route in routes), path


def test_only_registered_files_are_served(tmp_path: Path) -> None:
    sound, page, gone = tmp_path / "a.flac", tmp_path / "a.html", tmp_path / "gone.wav"
    sound.write_bytes(b"sound")
    page.write_bytes(b"<script>")
    app = FastAPI()
    add_files(app, {str(path): path for path in (sound, page, gone)}.get)
    answer = ask(app, "GET", f"/gradio_api/file={sound}")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"sound", "audio/flac")
    assert ask(app, "GET", f"/gradio_api/file={page}").headers["content-type"] == "application/octet-stream"
    for path in (gone, tmp_path / "b", tmp_path, "http://attacker.example/", f"{tmp_path}/../a.flac"):
        assert ask(app, "GET", f"/gradio_api/file={path}").status == 404
    for wanted in (b"bytes=1-2-3", b"bytes=0-\xb2", b"bytes=9-", b"bytes=-", b"x"):
        assert 200 <= ask(app, "GET", f"/gradio_api/file={sound}", headers=((b"range", wanted),)).status < 500


def test_a_reset_needs_an_event_id() -> None:
    with pytest.raises(ValueError, match="event_id"):
        ResetCall(event_id="a b")
