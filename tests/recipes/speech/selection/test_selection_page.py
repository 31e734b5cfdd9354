"""Tests of `overtone.recipes.speech.selection.selection_page`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.speech.selection import selection_page
from tests.data_prep.page import Page
from tests.recipes.speech.selection.selected import selection
from tests.recipes.voice_clone.evaluated import MARKUP


def test_the_page_has_the_table_the_plot_and_players(tmp_path: Path) -> None:
    result, clips = selection(tmp_path)
    kinds = {clip.scored.item.key: "short" if at < 3 else "other" for at, clip in enumerate(clips[result.decision.chosen])}
    text = selection_page.render_page(result, clips, kinds, MARKUP)
    found = Page(text)
    assert MARKUP not in text and not found.all("script"), "texts of others are escaped"
    assert len(found.all("audio")) == selection_page.SHOWN_TEXTS * 4, "the recordings and three candidates of the front"
    assert len([image for image in found.all("img") if "plot" in image.get("class", "")]) == 1
    assert "a tie of 2 of 4 candidates" in text and "slightly too good" in text and "A note." in text


def test_some_texts_of_each_kind_are_shown(tmp_path: Path) -> None:
    items = [clip.scored.item for clip in selection(tmp_path)[1]["step 2, strength 0.5"]]
    kinds = {item.key: "other" for item in items} | {items[9].key: "short", items[10].key: "number"}
    shown = selection_page.choose_keys(items, kinds)
    assert {items[0].key, items[9].key, items[10].key} <= shown and len(shown) == selection_page.SHOWN_TEXTS
