"""The manifest of the output folder: keys, rows, and repeated runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from overtone.recipes.speech.cli import synthesis_manifest
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.text_inputs import TextLine

REQUEST, SAMPLING = SpeechRequest("Hi.", None, reference=None), SpeechSampling(seed=3)


def test_the_key_depends_on_everything_that_determines_the_audio(tmp_path: Path) -> None:
    clips = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for index, clip in enumerate(clips):
        clip.write_bytes(b"%d" % index)
    same = synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[0]), SAMPLING, "m")
    others = [
        synthesis_manifest.compute_line_key(REQUEST, SAMPLING, "m"),
        synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[1]), SAMPLING, "m"),
        synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[0], text="Ho."), SAMPLING, "m"),
        synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[0]), SpeechSampling(seed=4), "m"),
        synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[0]), SAMPLING, "n"),
    ]
    assert len({same, *others}) == 6
    assert same == synthesis_manifest.compute_line_key(replace(REQUEST, reference=clips[0]), SAMPLING, "m")


def test_the_manifest_keeps_the_last_row_of_each_line_in_order(tmp_path: Path) -> None:
    clip = tmp_path / "clip.flac"
    clip.write_bytes(b"")
    spoken = SpeechResult(np.zeros(2400, np.float32), 24000, ended=False)
    for number, key in ((7, "a"), (2, "b"), (7, "c")):
        line = TextLine(f"f:{number}", number, SpeechRequest("Hi.", None, "de", clip))
        synthesis_manifest.write_line(tmp_path, line, replace(line.request, language="german"), spoken, SAMPLING.seed, key, "me")
    with (tmp_path / synthesis_manifest.MANIFEST).open("a") as file:
        file.write('{"line": 9, "fi')
    rows = synthesis_manifest.read_manifest(tmp_path)
    assert {number: row["key"] for number, row in rows.items()} == {7: "c", 2: "b"}, (
        "the last row of each line; the incomplete row is ignored"
    )
    expected = {
        "text": "Hi.",
        "speaker": None,
        "reference": str(clip),
        "language": "german",
        "file": "00007.wav",
        "seconds": 0.1,
        "ended": False,
    }
    assert expected.items() <= rows[7].items() and rows[7]["seed"] == 3 and (tmp_path / "00007.wav").is_file()
    synthesis_manifest.write_manifest(tmp_path, rows)
    assert [row["line"] for row in synthesis_manifest.read_manifest(tmp_path).values()] == [2, 7]
