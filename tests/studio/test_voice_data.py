"""From an empty folder to a voice dataset with codes, by what a person sees; the files are those of the commands that the pages show."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import soundfile

from overtone.finetune.storage import demo_models
from tests import browser
from tests.browser import CHROMIUM
from tests.data_prep.conftest import MARKUP
from tests.studio.serving import ROOT, serve_studio

SPEECH = demo_models.data_folder() / "sample" / "slt"
HOSTILE = f"{MARKUP}$(touch x).wav"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]


def run_shown(view: Any, place: Path) -> None:
    """Run the command that a page shows in a terminal, in another folder."""
    words = shlex.split(view.locator("pre code").last.text_content())
    assert words[0] == "overtone"
    subprocess.run([sys.executable, "-m", *words], cwd=place, check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})


def wait_for_end(view: Any) -> None:
    """Wait until the job of the page has ended well."""
    end = time.monotonic() + 600  # speech is aligned on a machine that may have other work
    while not view.evaluate("() => /done|failed|lost/.test(document.getElementById('state').textContent)"):
        assert time.monotonic() < end, view.locator("#log").text_content()
        view.wait_for_timeout(100)
    assert "done" in view.locator("#state").text_content(), view.locator("#log").text_content()


def read_folder(folder: Path) -> dict[str, bytes]:
    """The content of all files that are not hidden, without the times of the runs."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "/." not in name and path.name != "run.json"}


def test_recordings_become_a_dataset(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    place, other, given = tmp_path / "studio", tmp_path / "terminal", tmp_path / "given"
    for folder in (place, other, given):
        folder.mkdir()
    said = json.loads((SPEECH / "harbour.transcript.json").read_text())[:5]
    samples, rate = soundfile.read(SPEECH / "harbour.flac", dtype="int16")
    soundfile.write(given / "harbour.flac", samples[: int((said[-1]["end"] + 0.4) * rate)], rate)
    (given / "harbour.transcript.json").write_text(json.dumps(said))
    (given / HOSTILE).write_bytes(b"RIFF")
    with serve_studio(place) as address, sync_playwright() as tools, browser.open_view(tools) as view:
        view.goto(address)
        view.get_by_role("link", name="New voice").click()
        browser.check_look(view)
        view.get_by_label("Name").fill("slt")
        view.get_by_role("button", name="Make the folder").click()
        view.get_by_label("This is my own voice.").check()
        view.get_by_label("Your name").fill(MARKUP)
        browser.check_look(view)
        view.get_by_role("button", name="Confirm").click()
        view.get_by_role("button", name="Confirm").wait_for(state="detached")
        view.wait_for_load_state()  # the scripts of the page receive the files
        view.get_by_label("Choose files").set_input_files([str(path) for path in sorted(given.iterdir())])
        view.get_by_role("link", name="Show the folder").wait_for()
        assert "is stored as _img src=x onerror=alert(1)__(touch x).wav" in view.locator(".sent").text_content()
        browser.check_look(view)
        view.get_by_role("link", name="Show the folder").click()
        consent = json.loads((place / "recordings" / "slt" / "speaker_consent.json").read_text())
        assert consent["who"] == MARKUP and consent["text"] == "This is my own voice."
        assert view.get_by_role("combobox", name="Transcripts", exact=True).input_value() == "yes"
        view.get_by_label("Name of the speaker").fill("slt")
        browser.wait_until(view, "() => document.getElementById('prepare-command').textContent.includes('--speaker slt')")
        browser.check_look(view)
        shutil.copytree(place / "recordings", other / "recordings")
        run_shown(view, other)
        view.get_by_role("button", name="Make the dataset").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        assert read_folder(place / "data") == read_folder(other / "data")

        view.get_by_role("link", name="Open the dataset").click()
        browser.check_look(view)
        view.get_by_role("button", name="What would a stricter rule remove?").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        view.get_by_role("link", name="Back to the dataset").click()
        view.get_by_role("button", name="Make the report").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        view.get_by_role("link", name="Show the report").click()
        assert view.get_by_role("heading", name="slt").count() and view.locator("audio").count()
        view.go_back()
        view.goto(f"{address}/voice/dataset?folder=data/slt")
        view.get_by_label("Model with the codec").fill("codec-demo")
        browser.wait_until(view, "() => document.getElementById('codes-command').textContent.includes('codec-demo')")
        run_shown(view, other)
        view.get_by_role("button", name="Encode the clips").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        found, expected = read_folder(place / "data"), read_folder(other / "data")
        assert found.pop("slt/report.html") and found == expected
        view.get_by_role("link", name="Back to the dataset").click()
        view.get_by_role("link", name="Review the clips").click()
        browser.check_look(view)
        view.get_by_role("button", name="Reject").click()
        view.get_by_text("2 of ").wait_for()
        assert '"action":"reject"' in (place / "data/slt/review.jsonl").read_text().replace(" ", "")
        view.get_by_role("link", name="Back to the dataset").click()
        view.get_by_role("button", name="Apply the decisions of the review").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        assert not (place / "x").exists()
