"""Tests of `overtone.recipes.speech.selection.result_rendering`."""

from __future__ import annotations

import io
import json

import pytest
from matplotlib.image import imread

from overtone.recipes.speech.selection import result_rendering
from overtone.recipes.speech.selection.result_rendering import SelectionResult
from tests.recipes.speech.selection.selected import selection


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SelectionResult:
    return selection(tmp_path_factory.mktemp("selection"))[0]


def test_the_reason_calls_a_tie_a_tie(result: SelectionResult) -> None:
    assert result_rendering.explain_choice(result.decision) == (
        "a tie of 2 of 4 candidates: step 2, strength 0.5 has the lowest cost (cost 0.245) and is the simplest of them "
        "(smallest strength, then earliest step)"
    )


def test_the_table_has_the_recordings_and_every_candidate_by_cost(result: SelectionResult) -> None:
    rows = result_rendering.table_rows(result)
    assert [row[1] for row in rows] == [
        "real recordings",
        "step 2, strength 0.5",
        "step 3, strength 1",
        "step 1, strength 0.5",
        "step 2, strength 1",
    ]
    assert [row[0] for row in rows] == ["", "*", "=", "", ""] and [row[-2] for row in rows] == ["", "front", "front", "front", ""]
    assert rows[1][2] == "20" and rows[1][-1] == "lowest cost, chosen"
    assert rows[2][-1] == "tied, +0.000 (+0.000 to +0.000)" and rows[3][-1].startswith("worse, +0.2")
    lines = result_rendering.render_table(result).splitlines()
    assert len(lines) == 6 and lines[0].split()[:2] == ["candidate", "WER"] and lines[2].startswith("*")


def test_the_record_has_all_figures_and_the_method(result: SelectionResult) -> None:
    found = json.loads(json.dumps(result_rendering.build_record(result), allow_nan=False))
    assert found["tied"] == ["step 2, strength 0.5", "step 3, strength 1"] and len(found["front"]) == 3
    assert "Hartigan" in found["method"] and found["settings"]["asr"] == "small"
    assert found["candidates"][0]["values"]["wer"] == 0.2 and found["candidates"][0]["cost"] == pytest.approx(0.245)
    assert found["candidates"][3]["dominated_by"] == "step 2, strength 0.5"
    assert found["recordings"]["wer"] == 0 and found["recordings"]["pace"] == 1


def test_the_plot_is_a_picture(result: SelectionResult) -> None:
    picture = imread(io.BytesIO(result_rendering.draw_plot(result)))
    assert picture.shape[0] > 400 and len({tuple(pixel) for row in picture[::9] for pixel in row[::9]}) > 10
