"""The review server answers this machine and serves nothing but the dataset. The requests are those of a browser."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overtone.data_prep.cli import voice
from overtone.data_prep.pages import voice_dataset_loader
from overtone.data_prep.pages.review_page import ReviewSession
from overtone.data_prep.pages.review_server import make_application
from tests import loopback, raw_http
from tests.asgi import ANYTHING, HOME, App
from tests.data_prep.cli.test_report import CHROMIUM, ROOT
from tests.data_prep.conftest import MARKUP
from tests.page_client import CLOSED_CALLS, CLOSED_PAGES, PageClient


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
    clip = rows(folder, "train.jsonl")[0]["audio"]
    (folder / "clips" / "link.txt").symlink_to("/etc/passwd")
    status, headers, sound = ask(port, f"/gradio_api/file={folder / clip}")
    assert (status, sound) == (200, (folder / clip).read_bytes()) and headers["content-type"] == "audio/flac"
    assert ask(port, f"/gradio_api/file={folder / clip}", Range="bytes=0-3")[2] == sound[:4]
    others = ("/etc/passwd", ROOT / "pyproject.toml", f"{folder}/../dataset.txt", folder.parent, folder / "clips" / "link.txt")
    for path in (*others, folder / "review.jsonl", folder / "train.jsonl", "http://attacker.example/", f"{folder / clip}%00"):
        assert ask(port, f"/gradio_api/file={path}")[0] == 404
    status, headers, page = ask(port, "/")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert b"fonts.googleapis" not in page
    listening = [one.laddr.ip for one in psutil.Process(server.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_the_limits_of_connections_are_in_front_of_it(server, port) -> None:
    raw_http.check_limits(port, "/theme.css")


def test_requests_of_another_site_in_the_same_browser_are_refused(server, port) -> None:
    evil = "http://attacker.example"
    assert ask(port, "/", Host=f"attacker.example:{port}")[0] == 400, "a name that the site gave to this machine"
    call = json.dumps({"data": ["a", "b", "c"], "fn_index": 3, "session_hash": "x"}).encode()
    for path, body in (("/gradio_api/queue/join", call), ("/gradio_api/cancel", b"{}"), ("/", None), ("/theme.css", None)):
        for kind in ("text/plain", "application/json"):
            assert ask(port, path, body, Origin=evil, Content_Type=kind)[0] == 403
    for host, origin in (("[", ""), (f"127.0.0.1:{port}", "http://["), (f"127.0.0.1:{port}", "null")):
        assert ask(port, "/", Host=host, Origin=origin)[0] in (400, 403)
    assert ask(port, "/gradio_api/queue/join", call, Content_Type="text/plain")[0] == 415


def test_only_routes_that_the_page_needs_are_open(server, port) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    for name in ("upload", "process_recording", "component_server", "call/keep", "run/keep", "vibe-edit", "stream/x", "reset/"):
        assert ask(port, f"/gradio_api/{name}", form, Content_Type="multipart/form-data; boundary=x")[0] in (404, 413)
    for name in (*CLOSED_CALLS, "upload_progress?upload_id=a", "startup-events"):
        assert ask(port, f"/gradio_api/{name}")[0] == 404
    for path in CLOSED_PAGES:
        assert ask(port, path)[0] == 404


@pytest.mark.filterwarnings("ignore")  # gradio's own, of its own dependencies
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(range(7)),
    values=st.dictionaries(st.integers(0, 3), ANYTHING, max_size=2),
    headers=st.lists(st.tuples(st.sampled_from([b"origin", b"host", b"range", b"accept-encoding"]), st.binary(max_size=5)), max_size=1),
)
def test_any_request_of_a_client_is_answered_without_a_traceback(
    name: int, values: dict[int, Any], headers: list[tuple[bytes, bytes]], app: App, session: ReviewSession
) -> None:
    """With 4xx and without a traceback; and what was not decided is not written."""
    id = next(iter(session.queue.clips))
    good = [["all clips", "worst first", ""], [None, id], [None, id], *[[None, id, "Text.", "note"]] * 4][name]
    call = {"data": [values.get(at, value) for at, value in enumerate(good)], "fn_index": name, "session_hash": "fuzz"}
    with contextlib.redirect_stderr(io.StringIO()) as log:
        app.ask("GET", "/", b"", [one for one in (HOME,) if not headers or headers[0][0] != b"host"] + headers)
        if app.ask("POST", "/gradio_api/queue/join", json.dumps(call).encode()).status == 200:
            assert b"process_completed" in app.ask("GET", "/gradio_api/queue/data", query=b"session_hash=fuzz").body
    assert log.getvalue().count("Traceback") == log.getvalue().count("gradio.exceptions.Error: "), log.getvalue()
    assert set(session.decisions) <= set(session.queue.clips)


def test_the_next_run_applies_decisions_made_in_the_page(server, port, folder, mixed_recordings, capsys) -> None:
    (mistaken,) = [row for row in rows(folder, "rejects.jsonl") if "too_fast" in row["reasons"]]
    (noisy,) = [row for row in rows(folder, "rejects.jsonl") if "noisy" in row["reasons"]]
    unwanted, undone, *_ = rows(folder, "train.jsonl")
    right = "Fishermen drink their coffee standing."
    page = PageClient(f"http://127.0.0.1:{port}")
    shown = page.predict("choose", "too_fast", "worst first", "")[1:]
    assert (shown[0], shown[2], shown[-1]) == (mistaken["id"], mistaken["text"], "1 of 1")
    page.predict("text", None, mistaken["id"], right, "")
    assert written(folder) == [{"id": mistaken["id"], "action": "text", "text": right}]
    page.predict("keep", None, noisy["id"], noisy["text"], "room tone")
    page.predict("reject", None, unwanted["id"], unwanted["text"], "")
    page.predict("reject", None, undone["id"], undone["text"], "")
    page.predict("undo", None, undone["id"], undone["text"], "")
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
    with sync_playwright() as tools:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        view = tools.chromium.launch(executable_path=CHROMIUM, args=flags).new_page()
        troubles: list[str] = []
        requests: list[str] = []
        view.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        view.on("pageerror", lambda error: troubles.append(str(error)))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(f"http://127.0.0.1:{port}/")
        said = view.locator("#said textarea")
        view.wait_for_function("document.querySelector('#said textarea')?.value", timeout=60_000)
        first = said.input_value()
        view.keyboard.press("r")
        view.wait_for_function("(before) => document.querySelector('#said textarea').value !== before", arg=first)
        second = said.input_value()
        said.fill("Quite another text.")
        view.keyboard.press("Control+Enter")
        view.wait_for_function("document.querySelector('#said textarea').value !== 'Quite another text.'")
        third = said.input_value()
        view.locator("#keep").click()
        view.wait_for_function("(before) => document.querySelector('#said textarea').value !== before", arg=third)
        view.keyboard.press(" ")  # plays, and does not press the button again that was clicked
        view.wait_for_timeout(1000)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 0
    texts = {row["id"]: row["text"] for name in ("train.jsonl", "val.jsonl", "rejects.jsonl") for row in rows(folder, name) if "id" in row}
    assert [(one["action"], texts[one["id"]], one.get("text")) for one in written(folder)] == [
        ("reject", first, None),
        ("text", second, "Quite another text."),
        ("keep", third, None),
    ]
    assert troubles == []
    assert {url.split("/")[2] for url in requests if url.startswith("http")} == {f"127.0.0.1:{port}"}
