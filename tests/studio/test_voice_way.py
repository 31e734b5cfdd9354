"""From recordings dropped on an empty studio to a spoken sentence of the new voice, by visible labels alone, with the demo models.

The same commands, copied from the pages and run in a terminal, write the same files.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import soundfile

from overtone.finetune.storage import demo_models
from tests.browser import CHROMIUM
from tests.data_prep.conftest import MARKUP
from tests.studio.visitor import Visitor, open_visit, read_folder, wait_for_state

SPEECH = demo_models.data_folder() / "sample" / "slt"
HOSTILE = f"{MARKUP}$(touch x).wav"
SETTINGS = {"train.steps": "4", "train.lr": "3e-4", "train.micro_tokens": "512", "checkpoint.every": "2"}
SENTENCE = "Where is the quiet captain?"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]


def record(folder: Path) -> list[Path]:
    """Write five sentences of a recording with their transcript, and a file that is no sound."""
    said = json.loads((SPEECH / "harbour.transcript.json").read_text())[:5]
    samples, rate = soundfile.read(SPEECH / "harbour.flac", dtype="int16")
    folder.mkdir()
    soundfile.write(folder / "harbour.flac", samples[: int((said[-1]["end"] + 0.4) * rate)], rate)
    (folder / "harbour.transcript.json").write_text(json.dumps(said))
    (folder / HOSTILE).write_bytes(b"RIFF")
    return sorted(folder.iterdir())


def test_recordings_become_a_voice(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools, open_visit(tools, tmp_path) as visitor:
        prepare_voice(visitor, record(tmp_path / "given"))
        train_voice(visitor)
        speak(visitor)
        compare(visitor)
        review_clips(visitor)
        assert not (visitor.place / "x").exists()


def prepare_voice(visitor: Visitor, recordings: list[Path]) -> None:
    view = visitor.view
    visitor.go_home()
    visitor.check_page()
    visitor.follow("New voice")
    visitor.check_page()
    view.get_by_label("Name").fill("slt")
    view.get_by_role("button", name="Make the folder").click()
    view.get_by_label("This is my own voice.").check()
    view.get_by_label("Your name").fill(MARKUP)
    visitor.check_page()
    view.get_by_role("button", name="Confirm").click()
    view.get_by_role("button", name="Confirm").wait_for(state="detached")
    visitor.drop(*recordings)
    assert "is stored as _img src=x onerror=alert(1)__(touch x).wav" in view.locator(".sent").text_content()
    visitor.check_page()
    visitor.follow("Show the folder")
    consent = json.loads((visitor.place / "recordings" / "slt" / "speaker_consent.json").read_text())
    assert consent["who"] == MARKUP and consent["text"] == "This is my own voice."
    assert view.get_by_role("combobox", name="Transcripts", exact=True).input_value() == "yes"
    view.get_by_label("Name of the speaker").fill("slt")
    visitor.check_page()
    visitor.do("Make the dataset")
    visitor.follow("Open the dataset")
    visitor.check_page()
    visitor.do("What would a stricter rule remove?")
    visitor.follow("Back to the dataset")
    view.get_by_label("Model with the codec").fill("codec-demo")
    visitor.do("Encode the clips")
    visitor.follow("Back to the dataset")
    visitor.do("Make the report")
    visitor.follow("Show the report")
    assert view.get_by_role("heading", name="slt").count() and view.locator("audio").count()


def train_voice(visitor: Visitor) -> None:
    view = visitor.view
    visitor.go_home()
    view.get_by_role("region", name="Datasets").get_by_role("link", name="Train").click()
    view.get_by_label("Base model").fill("qwen3-tts-demo-base")
    view.get_by_label("Name of the run").fill("slt")
    for key, value in SETTINGS.items():
        view.get_by_label(key, exact=True).fill(value)
    view.get_by_text("All other settings").click()
    view.get_by_label("train.precision", exact=True).select_option("fp32")
    visitor.do("Start training")
    visitor.follow("Curves and samples")
    visitor.check_page()
    visitor.go_home()
    view.get_by_role("region", name="Runs").get_by_role("link", name="Choose and export").click()
    view.get_by_label("Name of the export").fill("slt")
    visitor.check_page()
    visitor.do("Export")
    visitor.follow("Use the model")


def speak(visitor: Visitor) -> None:
    view = visitor.view
    view.get_by_label("Text to speak").fill(SENTENCE)
    visitor.check_page()
    visitor.do("Speak")
    visitor.follow("Back to the model")
    view.get_by_label("speech.wav").wait_for()
    visitor.check_page()
    assert soundfile.info(visitor.place / "speech" / "speech.wav").duration > 0.3


def compare(visitor: Visitor) -> None:
    """The terminal has nothing but the recordings that were dropped."""
    assert [shlex.split(one)[1] for one in visitor.commands] == ["voice", "voice", "codes", "report", "train", "export", "generate"]
    shutil.copytree(visitor.place / "recordings", visitor.terminal / "recordings")
    visitor.run_shown()
    for folder in ("data", "exports", "speech"):
        found, expected = read_folder(visitor.place / folder), read_folder(visitor.terminal / folder)
        assert found == expected and found, folder
    weights = sorted(path.relative_to(visitor.place) for path in (visitor.place / "runs" / "slt" / "checkpoints").rglob("*.safetensors"))
    assert len(weights) == 2 and all((visitor.place / one).read_bytes() == (visitor.terminal / one).read_bytes() for one in weights)


def review_clips(visitor: Visitor) -> None:
    view = visitor.view
    visitor.go_home()
    visitor.follow("Listen and check")
    visitor.follow("Review the clips")
    visitor.check_page()
    view.get_by_role("button", name="Reject").click()
    view.get_by_text("2 of ").wait_for()
    assert '"action":"reject"' in (visitor.place / "data/slt/review.jsonl").read_text().replace(" ", "")
    visitor.follow("Back to the dataset")
    view.get_by_role("button", name="Apply the decisions of the review").click()
    view.wait_for_url("**/job/*")
    wait_for_state(view, "done")
