"""The report page is complete, escaped, and loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from overtone.data_prep.pages import report_page
from overtone.data_prep.pages.report_page import make_funnel, render_page
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.recordings.removed_text import RemovedKind
from tests.data_prep.example_clips import clip, dataset, whole
from tests.data_prep.page import Page

NASTY = "\"><script>alert(1)</script><img src=x onerror=alert(2)>&amp;'</title></style>"


def some(folder):
    kept = [clip(f"c{at}", snr_db=16.0 + at, source=f"{at % 3}.wav", loudness_lufs=-20.0 - at) for at in range(9)]
    rejected = [
        clip("r0", ("noisy", "clipped"), snr_db=3.0, clipped_share=0.1, seconds=7.0),
        clip("r1", ("clipped",), clipped_share=0.2, source="1.wav"),
        whole("b.mp3", "unreadable", detail="garbage"),
        whole("c.wav", "duplicate", 12.0, "the same bytes as 1.wav"),
    ]
    return dataset(folder, kept, rejected, silent=5.5)


def test_the_funnel_adds_up_to_the_input(tmp_path) -> None:
    made = some(tmp_path)
    first, *parts = make_funnel(made)
    assert (first.name, first.seconds) == ("input", made.summary.input_seconds)
    assert sum(step.seconds for step in parts) == pytest.approx(first.seconds, abs=1e-9)
    assert [(step.name, step.seconds, step.count) for step in parts] == [
        ("no speech", 5.5, None),
        ("duplicate", 12.0, 1),
        ("noisy", 7.0, 1),
        ("clipped", 4.0, 1),
        ("unreadable", 0.0, 1),
        ("kept", 36.0, 9),
    ]
    for before, step in zip([1.0, *(step.before for step in parts)], parts, strict=False):
        assert step.before + step.share == pytest.approx(before, abs=1e-9), "each bar ends where the one above it begins"


def test_a_dataset_changed_after_its_summary_is_reported(tmp_path) -> None:
    made = some(tmp_path)
    assert "was changed after the summary" not in render_page(made)
    assert "differ by 4.0\u00a0s" in render_page(replace(made, kept=made.kept[1:]))


def test_the_channels_of_recordings_are_counted(tmp_path) -> None:
    made = some(tmp_path)
    assert "several channels" not in render_page(made)
    page = render_page(replace(made, summary=made.summary.model_copy(update={"channels": {"left": 2, "mix": 1}})))
    assert "Recordings with several channels, by what was used: left 2, mix 1." in page


def test_an_empty_dataset_has_a_page_too(tmp_path) -> None:
    page = Page(render_page(dataset(tmp_path, [], [whole("b.mp3", "unreadable", detail="garbage")], silent=0.0)))
    assert "unreadable: garbage" in page.text()
    assert page.all("audio") == []


def named(folder, name: str):
    """A dataset in which every text that others chose is `name`."""
    said = {"text": name, "speaker": name, "source": name, "language": name}
    kept = [clip(f"c{at}{name}", snr_db=16.0 + at, audio="x", **said) for at in range(4)]
    rejected = [clip(f"r{name}", (name, "noisy"), snr_db=1.0, audio="y", **said), whole(name, name, 1.0, name)]
    return dataset(folder / name.replace("/", "∕"), kept, rejected, preset=name)


def test_names_and_texts_are_escaped(tmp_path) -> None:
    page, plain = (Page(render_page(named(tmp_path, name))) for name in (NASTY, "plain"))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [list(attributes) for _, attributes in page.tags] == [list(attributes) for _, attributes in plain.tags]
    assert page.text().replace("∕", "/").count(NASTY) == plain.text().count("plain") >= 20


def test_the_page_loads_nothing_from_outside(tmp_path) -> None:
    source = render_page(some(tmp_path))
    page = Page(source)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", source)
    links = [attributes[key] for _, attributes in page.tags for key in ("src", "href", "xlink:href", "action") if key in attributes]
    assert len(links) >= 5
    assert all(link.startswith(("data:", "#")) for link in links)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    (script,) = [text for tag, text in page.texts if tag == "script"]
    raw = source.split("<script>")[1].split("</script>")[0]
    assert script in raw
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode()}'" in policy


def test_each_rule_has_a_curve_or_a_line(tmp_path) -> None:
    text = Page(render_page(some(tmp_path))).text()
    for reason in ("no text", "too short", "noisy", "clipped", "cut in sound", "unsure text", "narrow band"):
        assert reason in text
    assert "not in this preset" in text


def test_the_report_lists_the_settings_of_the_run(tmp_path) -> None:
    made = dataset(tmp_path, [clip("a")], [], text={"model": "small"}, decisions=3)
    lines = Page(render_page(made)).text().splitlines()
    for key, value in (("lengths target", "6.0"), ("text model", "small"), ("decisions", "3"), ("preset", "default")):
        assert lines[lines.index(key) + 1] == value


def test_the_report_shows_every_notice_and_how_texts_were_verified(tmp_path) -> None:
    made = some(tmp_path)
    rejected, used = (
        one.model_copy(update={"warning": f"note on {one.source}", "texts": "words not checked" if one.clips else ""})
        for source in ("c.wav", "1.wav")
        for one in made.summary.sources
        if one.source == source
    )
    notices = [Notice(text="the texts are short", recordings=("0.wav", "1.wav"))]
    summary = made.summary.model_copy(update={"notices": notices, "sources": [rejected, used]})
    text = Page(render_page(replace(made, summary=summary))).text()
    assert "warning: 0.wav, 1.wav: the texts are short" in text and "2 of 2 recordings have notes of their own" in text
    assert "duplicate: the same bytes as 1.wav; note on c.wav" in text, "also of a recording that is rejected as a whole"
    assert "note on 1.wav; clipped (1)" in text and text.count("words not checked") == 1


def test_the_report_shows_what_was_left_out_of_the_texts(tmp_path) -> None:
    made = dataset(tmp_path, [clip("a")], [])
    assert "Left out of the texts" not in Page(render_page(made)).text()
    removed = {"sound and mood tags": RemovedKind(count=7, examples=("[music]", "<laughs>"))}
    shown = Page(render_page(replace(made, summary=made.summary.model_copy(update={"removed_text": removed})))).text()
    assert all(part in shown for part in ("Left out of the texts", "sound and mood tags", "7", "[music] · <laughs>"))


def test_a_long_table_is_shortened_with_a_note(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report_page, "MOST_RECORDINGS", 2)
    page = Page(render_page(some(tmp_path)))
    assert "The 2 of 6 with most rejected speech; all are in summary.json." in page.text()
