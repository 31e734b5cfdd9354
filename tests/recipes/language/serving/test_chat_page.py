"""The page of `serve` for chats: real servers, over HTTP and in Chromium."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser
from tests.browser import CHROMIUM
from tests.data_prep.page import Page
from tests.page_client import CLOSED
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.voice_clone.served import Served, server

NASTY = "<img src=x onerror=alert(1)>"
LOSE_CONNECTION = """() => {
  window.fetch = async () => new Response(new ReadableStream({ start(lines) { lines.error(new TypeError("network error")); } }));
}"""
(QUESTION, ANSWER), (SECOND, SECOND_ANSWER) = tiny_runs.CHATS


@pytest.fixture(scope="module")
def served(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    folders = [Path(shutil.copytree(exported, place / name)) for name in ("mine", NASTY)]
    with server(folders, tmp_path_factory.mktemp("temporary"), "--batch", "4", "--max-new-tokens", "60") as running:
        yield running


def test_the_page_offers_the_models_and_nothing_from_elsewhere(served: Served) -> None:
    status, headers, body = served.ask("/")
    source = body.decode()
    page = Page(source)
    assert status == 200 and headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert [text for tag, text in page.texts if tag == "option"] == ["mine", NASTY, "– none –", "mine", NASTY], "names are texts"
    assert page.all("script") == [{"type": "module", "src": "/assets/chat_page.js"}] and re.findall(r"//[^\s\"]+", source) == []
    for path in (*CLOSED, "/chat_page.js", "/assets/text_to_speech_page.js"):
        assert served.ask(path)[0] == 404, path
    assert served.ask("/", Origin="http://attacker.example")[0] == 403


def test_every_control_has_a_label(served: Served) -> None:
    page = Page(served.ask("/")[2].decode())
    labels = [text for tag, text in page.texts if tag == "label"]
    assert labels == [
        *("Model A", "Model B, beside it", "System prompt", "Temperature", "Top p", "Seed", "Most tokens", "Message", "Row of data")
    ]
    assert len(labels) == len(page.all("select")) + len(page.all("input")) + len(page.all("textarea"))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to test the page in a browser")
def test_a_browser_chats_with_two_models_edits_and_copies(served: Served) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools, browser.open_view(tools, "status of 400", permissions=["clipboard-write"]) as view:
        view.goto(served.url)
        message, answers = view.get_by_label("Message"), view.locator(".answer .words")
        message.fill(QUESTION)
        message.press("Enter")
        browser.wait_until(view, "() => document.querySelectorAll('.answer[aria-busy=false]').length === 2")
        assert answers.all_inner_texts() == [ANSWER, ANSWER]
        assert view.locator(".answer .eyebrow").all_inner_texts() == ["mine", NASTY] and view.locator("img").count() == 0
        browser.check_look(view)
        view.get_by_role("button", name="Copy as a row").first.click()
        view.get_by_text("to train on it").wait_for()
        row = json.loads(view.get_by_label("Row of data").input_value())
        assert row == {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}
        view.get_by_role("button", name="Regenerate").first.click()
        view.get_by_text("A greedy answer is always the same").wait_for()
        view.get_by_role("button", name="Edit").click()
        assert message.input_value() == QUESTION and answers.count() == 0
        view.get_by_label("Model B").select_option("")
        message.fill(SECOND)
        view.get_by_role("button", name="Send").click()
        browser.wait_until(view, "(answer) => document.querySelector('.answer .words')?.textContent === answer", SECOND_ANSWER)
        view.get_by_text("Settings").click()
        view.get_by_label("System prompt").fill("word " * 99)
        message.fill(QUESTION)
        message.press("Enter")
        view.get_by_text("the model takes 96 tokens").wait_for()
        copies = view.get_by_role("button", name="Copy as a row")
        assert copies.count() == 1, "a failed answer is no row"
        message.fill(SECOND)
        message.press("Enter")
        view.get_by_text("An answer failed or was stopped").wait_for()
        assert view.locator("#turns li").count() == 2 and message.input_value() == SECOND
        with view.expect_request("**/v1/chat/completions"):  # the same request, which may succeed now
            view.get_by_role("button", name="Regenerate").last.click()
        view.get_by_label("System prompt").fill("")
        view.get_by_role("button", name="Regenerate").last.click()
        browser.wait_until(view, "() => [...document.querySelectorAll('.answer .state')].at(-1).textContent === ''")
        assert copies.count() == 2
        view.get_by_role("button", name="New conversation").click()
        assert view.locator("#turns li").count() == 0
        view.get_by_label("Temperature").fill("9")
        message.fill(QUESTION)
        message.press("Enter")
        assert view.locator("#turns li").count() == 0, "a setting out of its range is shown, and nothing is sent"
        view.get_by_label("Temperature").fill("1.9")
        view.get_by_label("Seed").fill("3")
        message.press("Enter")
        browser.wait_until(view, "() => document.querySelectorAll('.answer[aria-busy=false]').length === 1")
        view.get_by_role("button", name="Regenerate").click()
        browser.wait_until(view, "() => document.querySelectorAll('.answer[aria-busy=false]').length === 1")
        assert view.get_by_label("Seed").input_value() == "4"
        browser.check_look(view)
        view.evaluate(LOSE_CONNECTION)
        view.get_by_role("button", name="Regenerate").click()
        view.get_by_text("The answer was broken off; the terminal of the server says why. Try again once it runs.").wait_for()
