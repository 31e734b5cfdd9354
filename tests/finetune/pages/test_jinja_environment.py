"""Shared HTML macros and number formats."""

from __future__ import annotations

import pytest

from overtone.finetune.pages.jinja_environment import format_duration, format_percent, format_position, make_environment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.94, "59.9 s"), (61.2, "1 min 01 s"), (3599.9, "60 min 00 s"), (3600, "1 h 00 min"), (90_000, "25 h 00 min")],
)
def test_durations_are_formatted_for_readers(seconds, text) -> None:
    assert format_duration(seconds).replace("\u00a0", " ") == text


def test_percentages_and_times_are_formatted_for_readers() -> None:
    assert format_percent(0.123).replace("\u202f", " ") == "12.3 %"
    assert [format_position(seconds) for seconds in (4.25, 61.0, 3723.4)] == ["0:04.2", "1:01.0", "1:02:03.4"]


def test_templates_of_another_folder_can_use_the_shared_macros(tmp_path) -> None:
    (tmp_path / "page.html").write_text(
        '{% from "page_templates.html" import head, how_it_was_made %}{{ head(name) }}{{ how_it_was_made(settings) }}'
    )
    page = make_environment(tmp_path).get_template("page.html").render(name="<b>", settings=[("max_seconds", "<i>")])
    assert "<title>&lt;b&gt;</title>" in page and "<dt>max seconds</dt><dd>&lt;i&gt;</dd>" in page
    assert "default-src 'none'" in page and "script-src" not in page, "a page without a script allows none"
