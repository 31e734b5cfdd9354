"""The recognizers that measure the WER are loaded before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.data_prep.audio.waveform import read_audio
from overtone.finetune.errors import UserError
from workshop.demo_models import recognizers
from workshop.demo_models.codec import measure_codec
from workshop.demo_models.corpus import make_new_voice


@pytest.mark.slow
def test_both_recognizers_have_a_low_wer_on_the_right_texts_only() -> None:
    rows = [json.loads(line) for line in (make_new_voice.FOLDER / "held_out.jsonl").read_text().splitlines()[:3]]
    spoken = [(row["text"], read_audio(make_new_voice.FOLDER / row["audio"], 24_000).samples) for row in rows]
    measures = recognizers.load_recognizers(["whisper-demo-en", "pocketsphinx"])
    assert list(measures) == ["whisper-demo-en", "pocketsphinx"]
    for measure in measures.values():
        assert measure(spoken) < 0.3 < 0.6 < measure([(spoken[0][0], spoken[1][1]), (spoken[1][0], spoken[2][1])])


def test_an_unavailable_recognizer_is_reported_by_its_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--asr nobody\.pt"):
        measure_codec.main(["--corpus", str(tmp_path), "--asr", "pocketsphinx", "--asr", "nobody.pt"])
