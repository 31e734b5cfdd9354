"""Tests of `overtone.recipes.speech.evaluation.results_page`: players and pictures are in the page, texts are escaped, nothing is
requested."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.recipes.speech.evaluation import result_rendering, results_page
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC
from tests.browser import CHROMIUM, FAINT
from tests.data_prep.page import Page
from tests.recipes.voice_clone.evaluated import BASE, MARKUP, STEPS, TEXTS, evaluation

LOADED = """async () => {
  const sounds = [...document.querySelectorAll("audio")], pictures = [...document.querySelectorAll("img")];
  const known = (one) => one.duration > 0 || new Promise((go, fail) => { one.onloadedmetadata = go; one.onerror = fail; });
  pictures.forEach((one) => { one.loading = "eager"; });
  await Promise.all([...sounds.map(known), ...pictures.map((one) => one.decode())]);
  return [sounds.map((one) => one.duration), pictures.map((one) => one.naturalWidth)];
}"""
"""Durations of all players and widths of all pictures, once they are loaded. Other ways to wait need `eval`, which the page forbids."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return results_page.render(evaluation(tmp_path_factory.mktemp("evaluated")))


def test_every_clip_has_a_player_and_a_spectrogram(source: str) -> None:
    page = Page(source)
    assert len(page.all("audio")) == len(page.all("img")) == TEXTS * 5
    assert all(one["src"].startswith("data:audio/flac;base64,") for one in page.all("audio"))
    assert all(one["src"].startswith("data:image/png;base64,") for one in page.all("img"))
    text = page.text()
    for expected in (
        MARKUP,
        "Did training help?",
        "Speaking rate",
        "cut off at the time limit",
        "A note.",
        "faster from step 100",
        *STEPS,
    ):
        assert expected in text


def test_the_page_begins_with_the_verdicts_in_one_line(source: str, tmp_path: Path) -> None:
    first = result_rendering.verdicts(evaluation(tmp_path))[0]
    assert first in Page(source).text() and source.index("Better than ") < source.index("<tbody>")


def test_the_table_on_top_compares_before_and_after(source: str) -> None:
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", source.partition("<tbody>")[2].partition("</tbody>")[0]))
    assert page.startswith(" WER (%) unseen, 6 0 30 10 ▼ −20 −20 to −20 better ")
    assert "Similarity, own encoder (cosine) unseen, 6 0.825 0.525 0.725 ▲ 0.2 0.2 to 0.2 better " in page
    assert "Not ended (%) unseen, 6 0 16.7 0 ▼ −16.7 " in page and "no clear difference" in page and "Clipped" not in page


def test_without_a_base_the_page_says_that_nothing_was_compared(tmp_path: Path) -> None:
    whole = evaluation(tmp_path, ["step 200"])
    alone = replace(whole, systems=whole.systems[:1], clips={name: clips for name, clips in whole.clips.items() if name != BASE})
    assert "there is no base to compare with. Give it with --base FOLDER." in results_page.render(alone)


def test_systems_have_names_for_people_and_wrong_words_are_marked(source: str) -> None:
    text = Page(source).text()
    assert "before: Untrained base: base; after: Trained voice at step 300." in text
    for name in ("Real recordings", "Trained voice at step 300", "Untrained base: base"):
        assert name in text
    cards = [part for part in source.split('<li class="clip">') if "Untrained base" in part]
    marked = '<mark title="instead of: boat">goat</mark> <del title="missing">lost</del> <mark title="not in the text">&lt;/script&gt;'
    assert len(cards) >= TEXTS and all(marked in part for part in cards[-TEXTS:])
    assert "<mark title=" not in "".join(part for part in source.split('<li class="clip">') if "<b>Real recordings</b>" in part)


def test_the_page_names_the_recognizer_beside_verdicts_and_transcripts(tmp_path: Path, source: str) -> None:
    assert "by the transcripts of" not in source
    judged = results_page.render(replace(evaluation(tmp_path), settings={"model": "runs/me", "asr": f"folder/{MARKUP}/tiny<b>.pt"}))
    first, _, rest = judged.partition("<tbody>")
    sentence = "WER and CER are by the transcripts of tiny&lt;b&gt;.pt."
    assert first.count(sentence) == 1 and rest.partition('id="listen"')[2].count(sentence) == 1 and MARKUP not in judged


def test_recordings_through_the_codec_are_beside_the_recordings(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    coded = Page(results_page.render(replace(whole, clips={**whole.clips, THROUGH_CODEC: whole.clips[RECORDINGS]})))
    assert len(coded.all("audio")) == TEXTS * 6
    titles = re.findall(r"Real recordings, through the codec|Real recordings|Trained voice at step 300|Untrained base", coded.text())
    assert titles[-4:] == ["Real recordings", "Real recordings, through the codec", "Trained voice at step 300", "Untrained base"]


def test_the_page_has_no_requests_and_no_scripts(source: str) -> None:
    page = Page(source)
    assert not page.all("script") and not page.all("iframe") and MARKUP not in source
    addresses = [tag[key] for _, tag in page.tags for key in ("src", "href", "action", "poster", "srcset") if key in tag]
    assert len(addresses) > 40 and all(address.startswith(("data:", "#")) for address in addresses)
    without_data = re.sub(r"data:[a-z/]+;base64,[A-Za-z0-9+/=]+", "", source)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", without_data)
    assert "default-src 'none'" in source


def test_there_is_a_plot_for_each_metric_over_the_checkpoints(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "SHOWN_TEXTS", 1)
    page = Page(source)
    pictures = [one["aria-label"] for one in page.all("svg")]
    assert len(pictures) == 2 * 8 and "step 100: 10 %; step 200: 10 %; step 300: 10 %" in pictures[0]
    alone = Page(results_page.render(evaluation(tmp_path, ["step 200"])))
    assert not alone.all("svg") and "#checkpoints" not in [one["href"] for one in alone.all("a")]


def test_the_worst_texts_come_first_and_the_total_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluation(tmp_path)
    runaway = replace(whole.clips["step 300"][2], ended=False)
    clips = {**whole.clips, "step 300": [*whole.clips["step 300"][:2], runaway, *whole.clips["step 300"][3:]]}
    monkeypatch.setattr(results_page, "AUDIO_BYTES", 20_000)
    monkeypatch.setattr(results_page, "SHOWN_TEXTS", 3)
    texts = results_page.choose_texts(replace(whole, clips=clips))
    assert texts[0].item.key == "eval-02" and [card.name for card in texts[0].cards] == [RECORDINGS, *STEPS, BASE]
    players = [card.player for text in texts for card in text.cards]
    assert 0 < sum(map(len, players)) <= 20_000
    missing = [card.missing for text in texts for card in text.cards if not card.player]
    assert missing and all("no room for more audio; the file is" in one for one in missing)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install Debian's chromium to test the page in a browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_offline_without_errors_and_requests(source: str, tmp_path: Path, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    (tmp_path / "evaluation.html").write_text(source, encoding="utf-8")
    with sync_playwright() as tools:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=flags)
        context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=scheme, offline=True)
        view = context.new_page()
        problems: list[str] = []
        requests: list[str] = []
        view.on("console", lambda message: problems.append(message.text))
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.on("request", lambda request: requests.append(request.url[:40]))
        view.goto((tmp_path / "evaluation.html").as_uri())
        seconds, widths = view.evaluate(LOADED)
        assert len(seconds) == len(widths) == TEXTS * 5 and min(seconds) > 0.1 and min(widths) > 5
        assert view.evaluate("document.documentElement.scrollWidth") <= 400, "the page fits on a phone"
        texts, faint = view.evaluate(FAINT)
        assert texts > 100 and faint == []
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith("data:")] == [(tmp_path / "evaluation.html").as_uri()[:40]]
