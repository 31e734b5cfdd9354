"""A job's page shows its state and log while it runs and afterwards, and stops and repeats it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import JobEnd, JobProcess
from overtone.studio.page_interface import Page, Studio
from overtone.studio.pages import job_page
from tests.asgi import App
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.waiting import wait_for


def start(folder: Path) -> int:
    """Make a job look as if it ran; returns its lock."""
    held = os.open(folder / job_records.LOCK, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    record = JobProcess(runner=job_records.identify_process(os.getpid()), child=(2**22 + 1, 0.0), started=0)
    job_records.write_record(folder / job_records.PROCESS, record)
    return held


def test_a_running_job_can_be_stopped_and_then_at_once(app: App, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    held = start(folder)
    path = f"/job/{folder.name}"
    assert "Stop at once" not in app.ask("GET", path).body.decode()
    assert app.ask("POST", f"{path}/stop", b'{"at_once": false}').status == 200
    assert json.loads((folder / job_records.STOP).read_text()) == {"at_once": False}
    assert "Stop at once" in app.ask("GET", path).body.decode()
    assert app.ask("POST", f"{path}/repeat", b"{}").status == 400
    assert app.ask("POST", f"{path}/stop", b'{"at_once": 7, "more": 1}').status == 400
    os.close(held)
    answer = app.ask("POST", f"{path}/stop", b'{"at_once": true}')
    assert answer.status == 400 and "has ended already" in json.loads(answer.body)["detail"]


def test_an_ended_job_can_be_repeated(app: App, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    page = app.ask("GET", f"/job/{folder.name}").body.decode()
    assert "Resume" in page and f'href="/train?from={folder.name}"' in page and "overtone report runs/a" in page
    answer = app.ask("POST", f"/job/{folder.name}/repeat", b"{}")
    assert answer.status == 200
    id = json.loads(answer.body)["next"].removeprefix("/job/")
    assert id != folder.name

    def has_ended() -> bool:
        job = job_records.read_job(tmp_path, id)
        return job is not None and not job.is_active

    wait_for(has_ended)


def read_events(place: Path, id: str, act: Any) -> list[dict[str, Any]]:
    """All updates of a job. `act(number)` is called after each."""
    studio = Studio(place, "127.0.0.1")
    found = list[dict[str, Any]]()

    async def read() -> None:
        async for event in job_page.stream_updates(studio, job_page.find_job(studio, id)):
            if event.startswith("data: "):
                found.append(json.loads(event.removeprefix("data: ")))
            act(len(found))

    asyncio.run(asyncio.wait_for(read(), 60))
    return found


def test_updates_come_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_page, "SECONDS", 0.01)
    folder = make_folder(tmp_path)
    held = start(folder)
    (folder / job_records.LOG).write_text("step 1/4  loss 1  3 s left\n")

    def act(number: int) -> None:
        with (folder / job_records.LOG).open("a") as log:
            log.write(f"line {number}\n")
        if number == 2:
            job_records.write_record(folder / job_records.EXIT, JobEnd(code=0, stopped=False, ended=1))

    updates = read_events(tmp_path, folder.name, act)
    os.close(held)
    assert updates[0]["first"] and updates[0]["active"] and updates[0]["share"] == 0.25 and "running" in updates[0]["state"]
    assert [update["first"] for update in updates[1:]] == [False, False] and not updates[-1]["active"] and "done" in updates[-1]["state"]
    assert "".join(update["log"][0] for update in updates) == "step 1/4  loss 1  3 s left\nline 1\nline 2\n"


def test_a_job_that_has_ended_is_shown_whole(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / job_records.LOG).write_text("error: no room\n")
    (update,) = read_events(tmp_path, folder.name, lambda _: None)
    assert update["log"][0] == "error: no room\n" and update["text"] == "error: no room" and "lost" in update["state"]


def test_a_job_that_waits_names_what_it_waits_for(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "127.0.0.1")
    first, second = (make_folder(tmp_path, command={"verb": "train", "words": []}) for _ in range(2))
    held = [start(first), os.open(second / job_records.LOCK, os.O_RDWR)]
    fcntl.flock(held[1], fcntl.LOCK_EX)
    assert job_page.describe_job(studio, job_page.find_job(studio, second.name))["text"] == "waits for train"
    assert "A studio of another folder does not wait" in job_page.render_actions(studio, job_page.find_job(studio, second.name))
    for one in held:
        os.close(one)


def test_other_pages_offer_what_follows(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "127.0.0.1")
    studio.pages.append(Page((), (), job_links=lambda job: [(f"/next?{job.id}", "Next")]))
    folder = make_folder(tmp_path, command={"verb": "train", "words": [], "page": "//evil.example/"})
    job = job_page.find_job(studio, folder.name)
    assert "Next" not in job_page.render_actions(studio, job) and "evil" not in job_page.render_actions(studio, job)
    job_records.write_record(folder / job_records.EXIT, JobEnd(code=0, stopped=False, ended=1))
    assert "Next" in job_page.render_actions(studio, job_page.find_job(studio, folder.name))


def test_a_job_that_came_with_the_folder_has_no_buttons(app: App, tmp_path: Path) -> None:
    command = {"verb": "export", "words": ["runs/\u202ea", "--to", "exports/\u202ea"], "page": "/train"}
    folder = make_folder(tmp_path, command=command, is_own=False)
    page = app.ask("GET", f"/job/{folder.name}").body.decode()
    assert "Not started by you on this machine" in page and "Resume" not in page and "?from=" not in page
    assert "\u202e" not in page and "exports/\\u202ea" in page and "exports/\\U0000202ea" in page
    home = app.ask("GET", "/").body.decode()
    assert "not started by you on this machine" in home and "\u202e" not in home
    for request, body in (("repeat", b"{}"), ("stop", b'{"at_once": true}')):
        answer = app.ask("POST", f"/job/{folder.name}/{request}", body)
        assert answer.status == 400 and "was not started by you" in json.loads(answer.body)["detail"]
