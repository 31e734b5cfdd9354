"""Scripts of the studio in a browser: what was typed stays, a lost connection costs no file, hidden pages hold no connection."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import JobProcess
from tests import browser
from tests.browser import CHROMIUM
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.serving import serve_studio
from tests.studio.test_folder_content import write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_scripts_of_pages(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    write_dataset(tmp_path / "data" / "a", made_by="overtone text")
    write_dataset(tmp_path / "data" / "b", made_by="overtone text")
    (tmp_path / "chats" / "us").mkdir(parents=True)
    (tmp_path / "large.jsonl").write_bytes(b'{"a": 1}\n' * 10**6)
    job = make_folder(tmp_path, command={"verb": "check", "words": ["x"], "page": "/train"})
    held = os.open(job / job_records.LOCK, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    job_records.write_record(
        job / job_records.PROCESS, JobProcess(runner=job_records.identify_process(os.getpid()), child=(2**22 + 1, 0.0), started=0)
    )
    with serve_studio(tmp_path) as address, sync_playwright() as tools, browser.open_view(tools, expected="ERR_FAILED") as view:
        view.goto(f"{address}/train?dataset=data/a")
        view.get_by_label("Name of the run").fill("mine")
        view.get_by_label("Weights to train").select_option("lora")
        view.get_by_label("Dataset").select_option("data/b")
        assert "data%2Fa" in view.url or "data/a" in view.url  # a choice alone loads nothing
        view.get_by_role("button", name="Show the settings").click()
        view.wait_for_url("**dataset=data%2Fb**")
        assert view.get_by_label("Name of the run").input_value() == "mine"
        assert view.get_by_label("Weights to train").input_value() == "lora"

        view.goto(f"{address}/chats/folder?folder=chats/us")
        posts = list[str]()

        def lose_second(route: object) -> None:
            if route.request.method == "POST":  # type: ignore[attr-defined]
                posts.append(route.request.url)  # type: ignore[attr-defined]
            if len(posts) == 2 and route.request.method == "POST":  # type: ignore[attr-defined]
                route.abort()  # type: ignore[attr-defined]
            else:
                route.continue_()  # type: ignore[attr-defined]

        view.route("**/upload?*", lose_second)
        view.get_by_label("Choose files").set_input_files(str(tmp_path / "large.jsonl"))
        view.get_by_role("rowheader", name="large.jsonl").wait_for()
        assert (tmp_path / "chats/us/large.jsonl").read_bytes() == (tmp_path / "large.jsonl").read_bytes()
        assert len(posts) == 4 and len({one.split("id=")[1][:32] for one in posts}) == 1

        streams = list[str]()
        view.on("request", lambda request: streams.append(request.url) if request.url.endswith("/events") else None)
        view.goto(f"{address}/job/{job.name}")
        view.get_by_role("button", name="Stop", exact=True).focus()
        with view.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
            view.evaluate(HIDE, True)
        with view.expect_request("**/events"):
            view.evaluate(HIDE, False)
        view.keyboard.press("Enter")
        view.get_by_role("button", name="Stop at once").wait_for()
        assert "Stop at once" in view.evaluate("document.activeElement.textContent") and len(streams) == 2
    os.close(held)
