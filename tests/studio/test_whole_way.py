"""From a file of chats to an answer in a real browser, by visible labels alone, with the studio killed on the way.

The same commands, copied from the pages and run in a terminal, write the same files.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overtone.studio.jobs import job_records
from tests import browser, loopback
from tests.studio.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]
playwright = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SETTINGS = {
    "train.steps": "24", "train.lr": "4e-3", "train.micro_tokens": "512", "eval.every": "8", "checkpoint.every": "8",
}  # fmt: skip
MORE_SETTINGS = {"train.global_batch_tokens": "1024", "train.weight_decay": "0"}
BROWSERS = 8


def run_command(place: Path, *words: str) -> str:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def start_studio(place: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "overtone", "studio", str(place), "--port", str(port)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("studio: http"), line + process.stdout.read()
    return process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hostile name, an untrained tiny model and a dataset of chats."""
    place = tmp_path_factory.mktemp("studio") / "<b>my & models"
    place.mkdir()
    run_command(place, sys.executable, "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", "models/tiny")
    run_command(place, sys.executable, "-m", "overtone.recipes.llm_sft.toy_chats", "task")
    run_command(place, "overtone", "text", "task/val.jsonl", "--out", "data/chats", "--val-share", "0.1")
    return place


class Visitor:
    """A person at a browser, and the studio that may be killed meanwhile."""

    def __init__(self, view: Any, place: Path) -> None:
        self.view, self.place, self.port = view, place, loopback.free_port()
        self.studio = start_studio(place, self.port)
        self.commands = list[str]()

    def restart(self) -> None:
        self.studio.send_signal(signal.SIGKILL)
        self.studio.wait()
        self.studio = start_studio(self.place, self.port)

    def go_home(self) -> None:
        self.view.goto(f"http://127.0.0.1:{self.port}/")

    def start(self, button: str) -> str:
        """Press a button that starts a job, keep the command that the form shows, and return the job's id."""
        form = self.view.locator("form", has=self.view.get_by_role("button", name=button, exact=True))
        shown = form.locator("pre code")
        browser.wait_until(self.view, "(form) => document.querySelector(form).textContent !== ''", f"#{shown.get_attribute('id')}")
        self.view.wait_for_timeout(600)  # the form shows its command a moment after the last key
        command = shown.inner_text()
        self.view.get_by_role("button", name=button, exact=True).click()
        self.view.wait_for_url("**/job/*")
        assert self.view.locator("#command").inner_text() == command
        self.commands.append(command)
        return str(self.view.url.rpartition("/")[2])

    def wait_for_state(self, state: str) -> None:
        """Wait until the page shows a state; a job may take minutes on a busy machine."""
        end = time.monotonic() + 600
        while self.view.locator("#state").inner_text().strip() != state:
            assert time.monotonic() < end, self.view.locator("#log").inner_text()
            self.view.wait_for_timeout(100)


@pytest.fixture(scope="module")
def visitor(place: Path) -> Iterator[Visitor]:
    with (
        playwright.sync_playwright() as tools,
        browser.open_view(tools, viewport={"width": 1280, "height": 900}, expected="net::ERR", reduced_motion="reduce") as view,
    ):
        found = Visitor(view, place)
        yield found
        found.studio.kill()


def check_page(visitor: Visitor) -> None:
    """Fails if the page does not fit, or axe finds something serious."""
    browser.check_look(visitor.view)
    if (axe := find_axe()) is not None:
        found = axe.run(visitor.view, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert serious == [], serious


def find_axe() -> Any:
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return None
    return Axe()


def digest_files(place: Path, *folders: str) -> dict[str, str]:
    """Path → digest of every file of weights, configs and rows below these folders."""
    paths = sorted(path for folder in folders for path in (place / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_model_is_trained_although_the_studio_is_killed(visitor: Visitor, place: Path) -> None:
    visitor.go_home()
    check_page(visitor)
    view = visitor.view
    view.get_by_role("region", name="Datasets").get_by_role("link", name="Train").click()
    view.get_by_label("Base model").fill("models/tiny")
    view.get_by_label("Name of the run").fill("mine")
    for key, value in SETTINGS.items():
        view.get_by_label(key, exact=True).fill(value)
    view.get_by_text("All other settings").click()
    for key, value in MORE_SETTINGS.items():
        view.get_by_label(key, exact=True).fill(value)
    view.get_by_label("train.precision", exact=True).select_option("fp32")
    check_page(visitor)
    id = visitor.start("Start training")
    view.get_by_role("log").get_by_text("step 0: validation loss").wait_for()
    visitor.restart()  # the job runs on; the page finds the studio again by itself
    view.reload()
    visitor.wait_for_state("running")
    check_page(visitor)
    wait_for(lambda: list((place / "runs" / "mine" / "checkpoints").glob("step-*")))
    view.get_by_role("button", name="Save and stop").click()
    visitor.wait_for_state("stopped")
    job = job_records.read_job(place, id)
    assert job is not None and job.end is not None and job.end.stopped
    view.get_by_role("button", name="Resume").click()
    view.wait_for_url(lambda url: not url.endswith(id))
    visitor.wait_for_state("done")
    check_page(visitor)


def test_the_curves_are_shown(visitor: Visitor) -> None:
    view = visitor.view
    view.get_by_role("link", name="Curves and samples").click()
    assert view.get_by_role("img", name="Loss by step").count() == 1 and view.get_by_role("img", name="Learning rate by step").count() == 1
    check_page(visitor)


def test_the_best_is_chosen_exported_and_used(visitor: Visitor) -> None:
    view = visitor.view
    visitor.go_home()
    view.get_by_role("region", name="Runs").get_by_role("link", name="Choose and export").click()
    check_page(visitor)
    visitor.start("Choose the best")
    visitor.restart()
    view.reload()
    visitor.wait_for_state("done")
    view.get_by_role("link", name="Choose and export").click()
    assert view.get_by_role("combobox", name="Checkpoint").input_value() == "best"
    view.get_by_label("Name of the export").fill("mine")
    visitor.start("Export")
    visitor.wait_for_state("done")
    view.get_by_role("link", name="Use the model").click()
    view.get_by_label("Question").fill("reverse: <b>abc")
    view.get_by_label("Most tokens of an answer").fill("8")
    check_page(visitor)
    visitor.start("Answer")
    visitor.restart()
    view.reload()
    visitor.wait_for_state("done")


def test_eight_browsers_follow_one_job(visitor: Visitor, place: Path) -> None:
    (id,) = job_records.list_ids(place)[:1]
    pages = [visitor.view.context.new_page() for _ in range(BROWSERS)]
    for page in pages:
        page.goto(f"http://127.0.0.1:{visitor.port}/job/{id}")
    for page in pages:
        page.get_by_role("log").get_by_text("validation loss").first.wait_for()
        page.close()


def test_the_shown_commands_write_the_same_files(visitor: Visitor, place: Path, tmp_path: Path) -> None:
    assert [shlex.split(command)[1] for command in visitor.commands] == ["train", "select", "export", "generate"]
    other = tmp_path / place.name
    other.mkdir()
    for name in ("models", "data"):
        (other / name).symlink_to(place / name)
    answers = [run_command(other, *shlex.split(command)) for command in visitor.commands]
    found, expected = (digest_files(one, "exports") for one in (place, other))
    for card in ("README.md", "overtone.json"):  # they name the checkpoint, whose record says that the run was resumed
        assert found.pop(f"exports/mine/{card}") and expected.pop(f"exports/mine/{card}")
    assert len(found) >= 5 and found == expected
    weights = sorted(
        (other / "runs" / "mine" / "checkpoints").glob("step-00000024/*.safetensors")
    )  # of the stopped run, and of one without a stop
    assert weights and all(path.read_bytes() == (place / path.relative_to(other)).read_bytes() for path in weights)
    log = (place / job_records.JOBS / job_records.list_ids(place)[-1] / job_records.LOG).read_text()
    assert f"\n{answers[-1]}" in log  # a note on standard error may follow


def test_a_server_is_started_and_stopped(visitor: Visitor, place: Path) -> None:
    view = visitor.view
    visitor.go_home()
    view.get_by_role("region", name="Exports").get_by_role("link", name="Use").click()
    id = visitor.start("Start the server")
    address = view.get_by_role("link", name="Open its page")
    address.wait_for()
    assert loopback.ask(address.get_attribute("href") or "")[0] == 200
    view.get_by_role("button", name="Stop", exact=True).click()
    visitor.wait_for_state("stopped")
    job = job_records.read_job(place, id)
    assert job is not None
    wait_for(lambda: not job_records.holds_lock(job.folder / job_records.LOCK))  # the runner ends a moment after it records the end
