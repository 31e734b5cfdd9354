"""`overtone report` of a prepared dataset, parsed and shown in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep import __main__
from overtone.data_prep.pages.report_page import render_page
from tests.browser import CHROMIUM, FAINT
from tests.data_prep.conftest import MARKUP
from tests.data_prep.example_clips import clip, dataset
from tests.data_prep.page import Page

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made(mixed_dataset, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "page.html"
    assert __main__.main(["report", str(mixed_dataset), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def page(made) -> Page:
    return Page(made.read_text(encoding="utf-8"))


def test_the_funnel_accounts_for_every_second_of_the_summary(page, mixed_dataset) -> None:
    summary = json.loads((mixed_dataset / "summary.json").read_text())
    steps = [(row["class"], float(row["data-seconds"])) for row in page.all("tr") if "data-seconds" in row]
    seconds = {kind: sum(value for name, value in steps if name == kind) for kind in ("input", "silence", "lost", "kept")}
    assert seconds["input"] == summary["input_seconds"]
    assert seconds["silence"] == summary["non_speech_seconds"]
    assert seconds["lost"] == pytest.approx(summary["rejected_seconds"], abs=1e-4) != 0
    assert seconds["kept"] == pytest.approx(summary["kept_seconds"], abs=1e-4)
    assert seconds["silence"] + seconds["lost"] + seconds["kept"] == pytest.approx(seconds["input"], abs=1e-4)


def test_the_report_lists_recordings_and_their_rejections(page, mixed_dataset) -> None:
    text = page.text()
    sources = [one["source"] for one in json.loads((mixed_dataset / "summary.json").read_text())["sources"]]
    assert sorted(sources) == sorted([f"{MARKUP}.wav", "broken.mp3", "harbour.flac"])
    assert all(source in text for source in sources)
    for message in ("unreadable: ", "too fast", "noisy", "Convert it to WAV or FLAC", "<img src=x onerror=alert(2)>"):
        assert message in text


def test_every_clip_of_a_small_dataset_has_its_player_and_its_picture(page, mixed_dataset) -> None:
    rejects = [json.loads(line) for line in (mixed_dataset / "rejects.jsonl").read_text().splitlines()]
    kept = json.loads((mixed_dataset / "summary.json").read_text())["clips"]
    measured = [reject["id"] for reject in rejects if reject.get("audio") and {"noisy", "too_fast"} & set(reject["reasons"])]
    assert kept >= 4
    assert len(measured) == 2
    assert len(page.all("audio")) == len(page.all("img")) == kept + len(measured)
    assert {f"clip-{id}" for id in measured} < {item.get("id") for item in page.all("li")}
    assert all(player["src"].startswith("data:audio/flac;base64,") for player in page.all("audio"))
    assert len(page.all("script")) == 1


def test_the_same_dataset_gives_the_same_bytes_in_another_process(made, mixed_dataset) -> None:
    before = sorted(path.name for path in mixed_dataset.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "data_prep", "report", mixed_dataset],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{mixed_dataset}/report.html: \d\.\d MB\n", done.stdout)
    written = mixed_dataset / "report.html"
    assert written.read_bytes() == made.read_bytes()
    written.unlink()
    assert sorted(path.name for path in mixed_dataset.iterdir()) == before, "nothing else was written"


def test_a_folder_that_is_no_dataset_is_refused(tmp_path, capsys) -> None:
    assert __main__.main(["report", str(tmp_path)]) == 2
    assert "summary.json does not exist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_summary_that_does_not_match_the_manifests_causes_a_warning(mixed_dataset, tmp_path, capsys) -> None:
    shutil.copytree(mixed_dataset, tmp_path / "ds")
    lines = (tmp_path / "ds" / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ds" / "train.jsonl").write_text("".join(lines[1:]))
    assert __main__.main(["report", str(tmp_path / "ds")]) == 0
    assert "and its summary differ by" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to see the report in one")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_report_without_an_error_or_a_request(made, scheme, browser) -> None:
    with browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=scheme) as context:
        view = context.new_page()
        troubles: list[str] = []
        requests: list[str] = []
        view.on("console", lambda message: troubles.append(message.text))
        view.on("pageerror", lambda error: troubles.append(str(error)))
        view.on("request", lambda request: requests.append(request.url[:40]))
        view.goto(made.as_uri())
        view.wait_for_function("[...document.querySelectorAll('audio')].every((one) => one.duration > 0.5)")
        assert view.evaluate("document.documentElement.scrollWidth") <= 400, "the page is as narrow as a telephone"
        texts, faint = view.evaluate(FAINT)
        assert texts > 100 and faint == []
        heads = view.locator("table.sortable thead button")
        first = "table.sortable tbody tr:first-child th"
        heads.nth(2).click()
        assert view.locator(first).text_content() == "harbour.flac"
        assert view.locator("table.sortable thead th").nth(2).get_attribute("aria-sort") == "descending"
        heads.nth(2).click()
        assert view.locator(first).text_content() == "broken.mp3"
        heads.nth(0).click()
        assert [one.strip() for one in view.locator("table.sortable tbody th").all_text_contents()] == [
            f"{MARKUP}.wav",
            "broken.mp3",
            "harbour.flac",
        ]
    assert troubles == []
    assert [url for url in requests if not url.startswith("data:")] == [made.as_uri()[:40]]


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to see the report in one")
def test_long_lists_have_pages(browser, tmp_path) -> None:
    clips = [replace(clip(f"c{at:02d}", snr_db=20.0 + at), source=f"{at:02d}.wav") for at in range(60)]
    (tmp_path / "report.html").write_text(render_page(dataset(tmp_path, clips, [])), encoding="utf-8")
    with browser.new_context(viewport={"width": 400, "height": 800}) as context:
        view = context.new_page()
        view.goto((tmp_path / "report.html").as_uri())
        rows, cards = view.locator("table.sortable tbody tr:visible"), view.locator("#worst + p + ol li:visible")
        pagers = view.locator(".pager")
        assert (rows.count(), cards.count()) == (50, 8) and pagers.first.text_content() == "Previous1 to 50 of 60Next"
        pagers.first.get_by_text("Next").click()
        assert rows.count() == 10 and pagers.first.get_by_text("Next").is_disabled()
        view.locator("table.sortable thead button").first.click()
        assert rows.count() == 50 and rows.first.locator("th").text_content() == "00.wav", "sorting shows the first page"
        last = view.locator("#worst + p + ol li").last.get_attribute("id")
        view.evaluate(f"location.hash = '{last}'")
        view.locator(f"#{last}").wait_for(state="visible")
        assert cards.count() == 4 and view.evaluate("document.documentElement.scrollWidth") <= 400
