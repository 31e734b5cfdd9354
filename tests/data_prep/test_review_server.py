"""The page answers this machine, serves the dataset, and nothing else. Driven as a browser drives it: over HTTP."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from data_prep import voice
from tests import loopback
from tests.data_prep.conftest import MARKUP
from tests.data_prep.test_report import CHROMIUM, ROOT


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
    assert ask(port, f"/gradio_api/file={folder / clip}")[2] == (folder / clip).read_bytes()
    for path in ("/etc/passwd", ROOT / "pyproject.toml", f"{folder}/../dataset.txt", folder.parent, folder / "clips" / "link.txt"):
        assert ask(port, f"/gradio_api/file={path}")[0] in (403, 404)
    status, headers, page = ask(port, "/")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert b"fonts.googleapis" not in page
    listening = [one.laddr.ip for one in psutil.Process(server.pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_another_site_in_the_same_browser_can_do_nothing(server, port) -> None:
    evil = "http://attacker.example"
    assert ask(port, "/", Host=f"attacker.example:{port}")[0] == 400, "a name that the site gave to this machine"
    assert "access-control-allow-origin" not in ask(port, "/config", Origin=evil)[1], "its scripts cannot read the answer"
    call = json.dumps({"data": ["a", "b", "c"], "fn_index": 3, "session_hash": "x"}).encode()
    assert ask(port, "/gradio_api/queue/join", call, Origin=evil, Content_Type="text/plain")[0] == 422, (
        "all it can send without being asked"
    )
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    assert ask(port, "/gradio_api/upload", form, Origin=evil, Content_Type="multipart/form-data; boundary=x")[0] == 413


def test_decisions_made_in_the_page_are_honoured_by_the_next_run(server, port, folder, mixed_recordings, capsys) -> None:
    from gradio_client import Client

    (mistaken,) = [row for row in rows(folder, "rejects.jsonl") if "too_fast" in row["reasons"]]
    (noisy,) = [row for row in rows(folder, "rejects.jsonl") if "noisy" in row["reasons"]]
    unwanted, undone, *_ = rows(folder, "train.jsonl")
    right = "Fishermen drink their coffee standing."
    page = Client(f"http://127.0.0.1:{port}/", verbose=False, download_files=False)
    shown = page.predict("too_fast", "worst first", "", api_name="/choose")
    assert (shown[0], shown[2], shown[-1]) == (mistaken["id"], mistaken["text"], "1 of 1")
    page.predict(mistaken["id"], right, "", api_name="/text")
    assert written(folder) == [{"id": mistaken["id"], "action": "text", "text": right}]
    page.predict(noisy["id"], noisy["text"], "room tone", api_name="/keep")
    page.predict(unwanted["id"], unwanted["text"], "", api_name="/reject")
    page.predict(undone["id"], undone["text"], "", api_name="/reject")
    page.predict(undone["id"], undone["text"], "", api_name="/undo")
    assert [(one["id"], one["action"]) for one in written(folder)[1:]] == [
        (noisy["id"], "keep"),
        (unwanted["id"], "reject"),
        (undone["id"], "reject"),
        (undone["id"], "undo"),
    ]
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=30) == 0
    assert voice.main([str(mixed_recordings), "--out", str(folder), "--transcripts", "--speaker", "slt", "--language", "en"]) == 0
    assert f"look and listen: python -m data_prep report {folder}\n" in capsys.readouterr().out
    kept = {row["id"]: row["text"] for name in ("train.jsonl", "val.jsonl") for row in rows(folder, name)}
    assert kept[mistaken["id"]] == right
    assert MARKUP in noisy["source"] and noisy["id"] in kept
    assert undone["id"] in kept and unwanted["id"] not in kept
    assert [row["reasons"] for row in rows(folder, "rejects.jsonl") if row.get("id") == unwanted["id"]] == [["review"]]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to see the page in one")
def test_a_browser_decides_by_keyboard_and_reaches_for_nothing_else(mixed_dataset, tmp_path, port) -> None:
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
    assert process.wait(timeout=30) == 0
    texts = {row["id"]: row["text"] for name in ("train.jsonl", "val.jsonl", "rejects.jsonl") for row in rows(folder, name) if "id" in row}
    assert [(one["action"], texts[one["id"]], one.get("text")) for one in written(folder)] == [
        ("reject", first, None),
        ("text", second, "Quite another text."),
        ("keep", third, None),
    ]
    assert troubles == []
    assert {url.split("/")[2] for url in requests if url.startswith("http")} == {f"127.0.0.1:{port}"}
