"""The page of a run shows its log, and nothing outside of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.studio.jobs.job_records import StudioJob
from overtone.studio.page_interface import Studio
from overtone.studio.pages import job_page, run_page
from tests.asgi import App
from tests.data_prep.conftest import MARKUP
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_loss_chart import write_log

STEPS = [{"event": "step", "step": step, "loss": 3.0 / step, "lr": 1e-3} for step in (1, 2, 3)]


def write_run(folder: Path, lr: float = 1e-3, *events: dict[str, object]) -> Path:
    write_log(folder, {"event": "started", "step": 0, "total": 3}, *STEPS, *events)
    for step in (1, 3):
        saved = folder / "checkpoints" / f"step-{step:08d}"
        saved.mkdir(parents=True)
        (saved / "config.yaml").write_text(f"train:\n  lr: {lr}\nrun:\n  dir: {folder.name}\n")
    return folder


def test_curves_samples_and_settings_are_shown_as_text(app: App, tmp_path: Path) -> None:
    answers = [{"prompt": MARKUP, "answer": "an answer", "sound": "samples/a b.wav"}, 7]
    write_run(
        tmp_path / "runs" / "a", 1e-3, {"event": "sampled", "step": 2, "answers": answers}, {"event": "sampled", "step": 3, "answers": 1}
    )
    make_folder(tmp_path, command={"verb": "train", "words": ["--run.dir", "runs/a"]})
    page = app.ask("GET", "/run", query=b"run=runs%2Fa").body.decode()
    assert 'class="curve c1" d="M0.0 ' in page and "an answer" in page and "train.lr" in page and "Job and log" in page
    assert "<img" not in page and "&lt;img" in page and "file=samples/a%20b.wav" in page
    live = app.ask("GET", "/run/live", query=b"run=runs%2Fa").body.decode()
    assert live.strip() in page and "<html" not in live


def test_a_run_without_anything_is_shown(app: App, tmp_path: Path) -> None:
    (tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    page = app.ask("GET", "/run", query=b"run=runs%2Fa").body.decode()
    assert "No curve yet" in page and "The first checkpoint" in page


def test_two_runs_are_compared(app: App, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", 1e-3)
    write_run(tmp_path / "runs" / "b", 2e-3)
    page = app.ask("GET", "/run/compare", query=b"run=runs%2Fa&other=runs%2Fb").body.decode()
    assert "runs/a, training" in page and "runs/b, training" in page
    table = page[page.index("Settings that differ") :]
    assert table.index("train.lr") < table.index("run.dir") and "0.001" in table and "0.002" in table and "changes no number" in table
    same = app.ask("GET", "/run/compare", query=b"run=runs%2Fa&other=runs%2Fa").body.decode()
    assert "None, in the newest checkpoints" in same


@pytest.mark.parametrize("name", ["..", "/etc", "link", "runs/none", ""])
def test_folders_outside_are_refused(name: str, app: App, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for path in ("/run", "/run/live", "/run/compare", "/run/sound"):
        assert app.ask("GET", path, query=f"run={name}&other={name}&file=hostname".encode()).status in (400, 404)


def test_sounds_of_the_run_are_played_and_nothing_else(app: App, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a")
    (run / "samples").mkdir()
    (run / "samples" / "a.wav").write_bytes(b"RIFF")
    (run / "samples" / "b.wav").symlink_to("/etc/hostname")
    (tmp_path / "c.wav").write_bytes(b"RIFF")
    played = app.ask("GET", "/run/sound", query=b"run=runs%2Fa&file=samples%2Fa.wav")
    assert played.status == 200 and played.headers["content-type"] == "audio/wav"
    for file in ("log.jsonl", "samples/b.wav", "../../c.wav", "samples", "/etc/passwd", "a\\0.wav"):
        assert app.ask("GET", "/run/sound", query=f"run=runs%2Fa&file={file}".encode()).status == 404


def test_a_finished_training_leads_to_its_curves(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "127.0.0.1")
    page = run_page.make_page(studio)
    jobs = [
        job_page.find_job(studio, make_folder(tmp_path, command={"verb": verb, "words": ["--run.dir", "runs/a"]}).name)
        for verb in ("train", "voice")
    ]
    assert all(isinstance(job, StudioJob) for job in jobs)
    assert page.job_links(jobs[0]) == [("/run?run=runs%2Fa", "Curves and samples")] and page.job_links(jobs[1]) == []


def test_links_among_the_checkpoints_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "checkpoints" / "step-00000009").symlink_to(run / "checkpoints" / "step-00000001")
    (run / "checkpoints" / "step-x").mkdir()
    assert [path.name for path in run_page.list_checkpoints(run)] == ["step-00000001", "step-00000003"]
