"""Home shows the folder and the jobs."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.jobs import job_records
from overtone.studio.page_interface import Page, Studio
from overtone.studio.pages import home_page
from overtone.studio.studio_app import make_application
from tests.asgi import App
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_folder_content import write_dataset


def test_the_folder_and_its_jobs_are_listed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "chats", made_by="overtone text")
    (tmp_path / "runs" / "a b" / "checkpoints").mkdir(parents=True)
    id = make_folder(tmp_path).name
    app = App(make_application(tmp_path, "127.0.0.1", AccessPolicy(None, local=True)))
    page = app.ask("GET", "/").body.decode()
    assert "data/chats" in page and "runs/a b" in page and f"/job/{id}" in page and '<span class="state lost">' in page
    assert f"/job/{id}" in app.ask("GET", "/jobs").body.decode()
    app.close()


def test_a_running_job_stays_in_the_list(tmp_path: Path) -> None:
    running, lost = make_folder(tmp_path), make_folder(tmp_path)
    held = os.open(running / job_records.LOCK, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    newer = [make_folder(tmp_path).name for _ in range(home_page.SHOWN)]
    assert [job.id for job, _, _ in home_page.list_rows(tmp_path)] == [*reversed(newer), running.name]
    os.close(held)
    assert lost.name not in newer and len(home_page.list_rows(tmp_path)) == home_page.SHOWN


def test_what_other_pages_offer_is_linked(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "127.0.0.1")
    studio.pages.append(Page((), (), beginnings=(("/new", "New voice"),), dataset_links=lambda one: [(f"/train?data={one}", "Train")]))
    assert home_page.collect_links(studio, "dataset_links", "x") == [("/train?data=x", "Train")]
    assert home_page.collect_links(studio, "run_links", "x") == []


def test_a_driver_that_does_not_answer_delays_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(home_page, "describe_machine", lambda _: str(answered.wait(60)))
    line = home_page.MachineLine(tmp_path)
    assert "is being examined" in line.read()
    answered.set()
    line._thread.join(60)
    assert line.read() == "True"
