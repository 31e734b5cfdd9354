"""The review server answers this machine and serves nothing but the dataset. The requests are those of a browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overtone.data_prep.cli import voice
from overtone.data_prep.pages import voice_dataset_loader
from overtone.data_prep.pages.review_page import ReviewSession
from overtone.data_prep.pages.review_server import make_application
from tests import browser, loopback, raw_http
from tests.asgi import ANYTHING, HOME, App
from tests.browser import CHROMIUM
from tests.data_prep.cli.test_report import ROOT
from tests.data_prep.conftest import MARKUP
from tests.page_client import CLOSED


@pytest.fixture(scope="module")
def folder(mixed_dataset, tmp_path_factory) -> Path:
    return Path(shutil.copytree(mixed_dataset, tmp_path_factory.mktemp("review") / "dataset"))


@pytest.fixture(scope="module")
def port() -> int:
    return loopback.free_port()


@pytest.fixture(scope="module")
def server(folder, port) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "data_prep", "review", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"review: http://127.0.0.1:{port} "), process.communicate()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def session(mixed_dataset, tmp_path_factory: pytest.TempPathFactory) -> ReviewSession:
    return ReviewSession(
        voice_dataset_loader.read_dataset(Path(shutil.copytree(mixed_dataset, tmp_path_factory.mktemp("session") / "dataset")))
    )


@pytest.fixture(scope="module")
def app(session: ReviewSession) -> Iterator[App]:
    """The server's app in this process."""
    app = App(make_application(session))
    yield app
    app.close()


def ask(port: int, path: str, data: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, body."""
    return loopback.ask(f"http://127.0.0.1:{port}{path}", data, **headers)


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def written(folder: Path) -> list[dict]:
    return rows(folder, "review.jsonl")


def test_only_the_dataset_is_served_and_only_to_this_machine(server, port, folder) -> None:
    row = rows(folder, "train.jsonl")[0]
    clip, id = folder / row["audio"], quote(row["id"], safe="")
    status, headers, sound = ask(port, f"/sound?id={id}")
    assert (status, sound) == (200, clip.read_bytes()) and headers["content-type"] == "audio/flac"
    assert ask(port, f"/sound?id={id}", Range="bytes=0-3")[2] == sound[:4]
    assert ask(port, f"/picture?id={id}")[2].startswith(b"\x89PNG")
    for wanted in ("bytes=1-2-3", "bytes=9-1", "bytes=-", "x"):
        assert 200 <= ask(port, f"/sound?id={id}", Range=wanted)[0] < 500
    for other in ("/etc/passwd", row["audio"], f"../{row['id']}", f"{id}%00", "http://attacker.example/", ""):
        assert ask(port, f"/sound?id={other}")[0] in (400, 404) and ask(port, f"/clip?id={other}")[0] in (400, 404)
    held = clip.with_suffix(".held")
    clip.rename(held)
    clip.symlink_to("/etc/passwd")
    assert ask(port, f"/sound?id={id}")[0] == 404 == ask(port, f"/picture?id={id}")[0], "a link that leads out of the dataset"
    clip.unlink()
    assert ask(port, f"/sound?id={id}")[0] == 404, "a file that is gone"
    held.rename(clip)
    status, headers, page = ask(port, "/")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert re.findall(rb"(?:https?:)?//[^\s\"]+", page) == [], "nothing comes from another server"
    listening = [one.laddr.ip for one in psutil.Process(server.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_the_limits_of_connections_are_in_front_of_it(server, port) -> None:
    raw_http.check_limits(port, "/assets/page.css")


def test_requests_of_another_site_in_the_same_browser_are_refused(server, port) -> None:
    evil = "http://attacker.example"
    assert ask(port, "/", Host=f"attacker.example:{port}")[0] == 400, "a name that the site gave to this machine"
    call = json.dumps({"id": "a", "action": "keep", "text": "", "note": ""}).encode()
    for path, body in (("/decision", call), ("/", None), ("/assets/page.css", None), ("/clip", None)):
        for kind in ("text/plain", "application/json"):
            assert ask(port, path, body, Origin=evil, Content_Type=kind)[0] == 403
    for host, origin in (("[", ""), (f"127.0.0.1:{port}", "http://["), (f"127.0.0.1:{port}", "null")):
        assert ask(port, "/", Host=host, Origin=origin)[0] in (400, 403)
    assert ask(port, "/decision", call, Content_Type="text/plain")[0] == 415


def test_only_routes_that_the_page_needs_are_open(server, port) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    for path in ("/upload", "/clip", "/sound", "/"):
        assert ask(port, path, form, Content_Type="multipart/form-data; boundary=x")[0] in (404, 413)
    for path in (*CLOSED, "/review.jsonl", "/train.jsonl", "/clips/", "/decision"):
        assert ask(port, path)[0] == 404, path
    for query in ("view=nothing", "order=random", f"search={'a' * 201}"):
        assert ask(port, f"/?{query}")[0] == 400
    assert ask(port, "/?view=kept&order=longest%20first&search=&other=x")[0] == 200, "unknown parameters are dropped"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.dictionaries(st.sampled_from(["id", "action", "text", "note", "x"]), ANYTHING, max_size=2),
    headers=st.lists(st.tuples(st.sampled_from([b"origin", b"host", b"range", b"accept-encoding"]), st.binary(max_size=5)), max_size=1),
    query=st.tuples(st.sampled_from([b"view", b"order", b"search", b"id"]), st.binary(max_size=9)),
)
def test_any_request_of_a_client_is_answered(
    values: dict[str, Any], headers: list[tuple[bytes, bytes]], query: tuple[bytes, bytes], app: App, session: ReviewSession
) -> None:
    """With 4xx and without a traceback; and what was not decided is not written."""
    good = {"id": next(iter(session.queue.clips)), "action": "keep", "text": "Text.", "note": "note"}
    app.ask("GET", "/", b"", [one for one in (HOME,) if not headers or headers[0][0] != b"host"] + headers, b"=".join(query))
    for path in ("/clip", "/sound"):
        app.ask("GET", path, query=b"=".join(query))
    saved = app.ask("POST", "/decision", json.dumps(good | values).encode())
    assert saved.status in ((200,) if not values else (200, 400, 404)), saved
    assert set(session.decisions) <= set(session.queue.clips)


def decide(port: int, row: dict, action: str, text: str | None = None, note: str = "") -> None:
    body = {"id": row["id"], "action": action, "text": row["text"] if text is None else text, "note": note}
    status, _, answer = ask(port, "/decision", json.dumps(body).encode(), Content_Type="application/json")
    assert status == 200, answer


def test_the_next_run_applies_decisions_made_in_the_page(server, port, folder, mixed_recordings, capsys) -> None:
    (mistaken,) = [row for row in rows(folder, "rejects.jsonl") if "too_fast" in row["reasons"]]
    (noisy,) = [row for row in rows(folder, "rejects.jsonl") if "noisy" in row["reasons"]]
    unwanted, undone, *_ = rows(folder, "train.jsonl")
    right = "Fishermen drink their coffee standing."
    page = ask(port, "/?view=too_fast")[2].decode()
    assert mistaken["text"] in page and "1 of 1" in page
    refused = ask(
        port,
        "/decision",
        json.dumps({"id": mistaken["id"], "action": "text", "text": " ", "note": ""}).encode(),
        Content_Type="application/json",
    )
    assert refused[0] == 400 and b"decision not saved" in refused[2] and not (folder / "review.jsonl").exists()
    decide(port, mistaken, "text", right)
    assert written(folder) == [{"id": mistaken["id"], "action": "text", "text": right}]
    decide(port, noisy, "keep", note="room tone")
    decide(port, unwanted, "reject")
    decide(port, undone, "reject")
    decide(port, undone, "undo")
    assert [(one["id"], one["action"]) for one in written(folder)[1:]] == [
        (noisy["id"], "keep"),
        (unwanted["id"], "reject"),
        (undone["id"], "reject"),
        (undone["id"], "undo"),
    ]
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=100) == 0
    assert list(Path(tempfile.gettempdir()).glob(f".overtone-review-{port}-*")) == []
    argv = [str(mixed_recordings), "--out", str(folder), "--transcripts", "--speaker", "slt", "--language", "en", "--workers", "0"]
    assert voice.main(argv) == 0
    assert f"report: overtone report {folder}\n" in capsys.readouterr().out
    kept = {row["id"]: row["text"] for name in ("train.jsonl", "val.jsonl") for row in rows(folder, name)}
    assert kept[mistaken["id"]] == right
    assert MARKUP in noisy["source"] and noisy["id"] in kept
    assert undone["id"] in kept and unwanted["id"] not in kept
    assert [row["reasons"] for row in rows(folder, "rejects.jsonl") if row.get("id") == unwanted["id"]] == [["review"]]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to see the page in one")
def test_keyboard_shortcuts_work_in_a_browser_without_external_requests(mixed_dataset, tmp_path, port) -> None:
    from playwright.sync_api import sync_playwright

    folder = Path(shutil.copytree(mixed_dataset, tmp_path / "dataset"))
    command = [sys.executable, "-m", "data_prep", "review", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("review: ")
    with sync_playwright() as tools, browser.open_view(tools, "status of 500") as view:
        view.goto(f"http://127.0.0.1:{port}/")
        said = view.get_by_label("Transcript")
        first = said.input_value()
        browser.check_look(view)
        bodies = ["", "null"]
        view.route("**/decision", lambda route: route.fulfill(status=500, body=bodies.pop()), times=len(bodies))
        while bodies:
            view.keyboard.press("k")
            view.get_by_text("the server answered 500").wait_for()
        view.keyboard.down("r")
        browser.wait_until(view, "(before) => document.querySelector('#said').value !== before", first)
        for _ in range(3):
            view.keyboard.down("r")  # of a held key
        view.keyboard.up("r")
        second = said.input_value()
        said.fill("Quite another text.")
        view.keyboard.down("Control")
        view.keyboard.down("Enter")
        browser.wait_until(view, "() => document.querySelector('#said').value !== 'Quite another text.'")
        view.keyboard.down("Enter")
        view.keyboard.up("Enter")
        view.keyboard.up("Control")
        third = said.input_value()
        view.get_by_role("button", name="Keep").click()
        browser.wait_until(view, "(before) => document.querySelector('#said').value !== before", third)
        browser.wait_until(view, "() => document.querySelector('.spectrogram img').naturalWidth > 50")
        browser.wait_until(view, "() => document.querySelector('audio').readyState > 1")
        view.keyboard.press("Space")  # plays or pauses, and does not press the button again that was clicked
        view.keyboard.press("ArrowLeft")
        browser.wait_until(view, "(before) => document.querySelector('#said').value === before", third)
        assert "your decision: keep" in view.locator("#facts").inner_text()
        view.get_by_role("combobox", name="Show").select_option("too_fast")
        view.get_by_text("1 of 1").wait_for()
        view.get_by_label("Search text").fill("nothing holds this")
        view.get_by_label("Search text").press("Enter")
        view.get_by_text("No matching clips.").wait_for()
        assert view.get_by_role("button", name="Keep").is_disabled()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 0
    texts = {row["id"]: row["text"] for name in ("train.jsonl", "val.jsonl", "rejects.jsonl") for row in rows(folder, name) if "id" in row}
    assert [(one["action"], texts[one["id"]], one.get("text")) for one in written(folder)] == [
        ("reject", first, None),
        ("text", second, "Quite another text."),
        ("keep", third, None),
    ]
