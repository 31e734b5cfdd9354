"""From the microphone to a dataset: Chromium plays a file into its fake device, and `overtone voice` reads the takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.storage import demo_models
from tests import browser
from tests.browser import CHROMIUM
from tests.studio.serving import serve_studio
from tests.studio.visitor import wait_for_state

SPEECH = demo_models.data_folder() / "sample" / "rms"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]


@pytest.fixture
def spoken(tmp_path: Path) -> tuple[Path, str]:
    """A recording of one sentence, which Chromium repeats, and its text."""
    said = json.loads((SPEECH / "railway.transcript.json").read_text())[0]
    samples, rate = soundfile.read(SPEECH / "railway.ogg", dtype="float32")
    sentence = samples[: int((said["end"] + 0.3) * rate)]
    path = tmp_path / "fake.wav"
    soundfile.write(path, np.concatenate([np.zeros(rate // 2), 0.5 * sentence / np.abs(sentence).max()]), rate, subtype="PCM_16")
    return path, said["text"].strip()


def test_takes_become_a_dataset(tmp_path: Path, spoken: tuple[Path, str]) -> None:
    from playwright.sync_api import sync_playwright

    sound, text = spoken
    place = tmp_path / "studio"
    place.mkdir()
    (tmp_path / "own.txt").write_text(f"{text}\r\n\n<b>{text}</b>\n")
    device = f"--use-file-for-fake-audio-capture={sound}"
    with (
        serve_studio(place) as address,
        sync_playwright() as tools,
        browser.open_view(tools, flags=[device], permissions=["microphone"]) as view,
    ):
        view.goto(f"{address}/voice")
        view.get_by_label("Name").fill("me")
        view.get_by_role("button", name="Make the folder").click()
        view.get_by_label("This is my own voice.").check()
        view.get_by_label("Your name").fill("Ann")
        view.get_by_role("button", name="Confirm").click()
        view.get_by_role("link", name="Record with the microphone").click()
        view.get_by_label("Or your own text file").set_input_files(str(tmp_path / "own.txt"))
        browser.wait_until(view, "(text) => document.getElementById('sentence').textContent === text", text)
        browser.check_look(view)
        for again in (True, False):
            view.get_by_role("button", name="Record").click() if again else view.get_by_role("button", name="Take again").click()
            browser.wait_until(view, "() => document.activeElement.id === 'stop'")  # in place of the button that is gone
            browser.wait_until(view, "() => document.getElementById('level').value > -40")
            view.wait_for_timeout(int(1000 * soundfile.info(sound).duration))
            view.get_by_role("button", name="Stop").click()
            view.get_by_role("button", name="Take again").wait_for()
        browser.check_look(view)
        assert view.evaluate("document.activeElement.id") == "keep"
        questions = list[str]()
        view.once("dialog", lambda dialog: (questions.append(dialog.message), dialog.dismiss()))
        view.get_by_role("button", name="Next").click()
        assert questions == ["This take is not kept. Discard it?"] and view.locator("#sentence").text_content() == text
        assert view.locator("#judgement li").count() >= 1 and "Clipped" not in view.locator("#judgement").text_content()
        view.get_by_role("button", name="Keep").click()
        view.get_by_text("1 of 2 recorded.").wait_for()
        assert view.locator("#sentence").text_content() == f"<b>{text}</b>"
        folder = place / "recordings" / "me"
        (take,), (words,) = folder.glob("take_*.wav"), folder.glob("take_*.txt")
        assert words.read_text() == f"{text}\n" and take.stem == words.stem
        info = soundfile.info(take)
        assert (info.subtype, info.channels) == ("PCM_16", 1) and abs(info.duration - soundfile.info(sound).duration) < 3
        view.get_by_role("button", name="Previous").click()
        view.get_by_text("You have a take of this sentence").wait_for()
        view.get_by_role("link", name="Back to the folder").click()
        assert view.get_by_role("combobox", name="Transcripts", exact=True).input_value() == "yes"
        view.get_by_label("Rules of quality").select_option("keep-all")
        view.get_by_role("button", name="Make the dataset").click()
        view.wait_for_url("**/job/*")
        wait_for_state(view, "done")
    rows = [json.loads(line) for line in (place / "data" / "me" / "train.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [text]
