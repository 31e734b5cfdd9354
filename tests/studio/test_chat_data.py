"""From an empty folder to a chat dataset, by what a person sees; the files are those of the commands that the pages show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import browser
from tests.browser import CHROMIUM
from tests.data_prep.conftest import MARKUP
from tests.studio.serving import serve_studio
from tests.studio.test_voice_data import read_folder, run_shown, wait_for_end

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]


def test_chats_become_a_dataset(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    place, other, given = tmp_path / "studio", tmp_path / "terminal", tmp_path / "given"
    for folder in (place, other, given):
        folder.mkdir()
    rows = [
        {"messages": [{"role": "user", "content": f"Question {one}"}, {"role": "assistant", "content": f"{MARKUP} {one}"}]}
        for one in range(40)
    ]
    rows += [rows[0], {"messages": [{"role": "user", "content": "no answer"}]}]
    (given / f"{MARKUP}.jsonl").write_text("".join(json.dumps({**row, "<b>more</b>": 1}) + "\n" for row in rows))
    with serve_studio(place) as address, sync_playwright() as tools, browser.open_view(tools) as view:
        view.goto(address)
        view.get_by_role("link", name="New assistant").click()
        browser.check_look(view)
        view.get_by_label("Name").fill("us")
        view.get_by_role("button", name="Make the folder").click()
        view.wait_for_url("**/chats/folder?*")  # and until its scripts run, which receive the files
        view.get_by_label("Choose files").set_input_files([str(path) for path in given.iterdir()])
        view.get_by_role("link", name="Show the folder").click()
        browser.wait_until(view, "() => document.getElementById('prepare-command')?.textContent.includes('--out data/us')")
        browser.check_look(view)
        shutil.copytree(place / "chats", other / "chats")
        run_shown(view, other)
        view.get_by_role("button", name="Make the dataset").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        assert read_folder(place / "data") == read_folder(other / "data")

        view.get_by_role("link", name="Open the dataset").click()
        browser.check_look(view)
        assert "the same as another" in view.locator("main").text_content() and view.locator("dd.learned").count() == 10
        view.get_by_role("link", name="Next page").click()
        view.get_by_text("Page 2").wait_for()
        view.get_by_label("Search").fill("question 17")
        view.get_by_role("button", name="Search").click()
        view.get_by_text("Page 1").wait_for()
        assert view.locator("ol.turns > li").count() == 1 and view.locator("dd.learned").text_content() == f"{MARKUP} 17"
        view.get_by_role("link", name="Rejected").click()
        view.get_by_text("rejects.jsonl:1", exact=True).wait_for()
        browser.check_look(view)
        view.get_by_role("button", name="Make the report").click()
        view.wait_for_url("**/job/*")
        wait_for_end(view)
        view.get_by_role("link", name="Show the report").click()
        assert view.get_by_role("heading", name="Lengths and turns").count() == 1 and view.locator("img").count() == 0
