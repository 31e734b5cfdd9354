"""Who counts wrong words is at hand before anybody has listened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.audio.waveform import read_audio
from finetune.errors import UserError
from recipes.voice_clone.studio import judges
from recipes.voice_clone.studio.codec import measure_codec
from recipes.voice_clone.studio.corpus import make_new_voice


def test_both_understand_a_held_out_sentence_and_no_other() -> None:
    rows = [json.loads(line) for line in (make_new_voice.FOLDER / "held_out.jsonl").read_text().splitlines()[:3]]
    said = [(row["text"], read_audio(make_new_voice.FOLDER / row["audio"], 24_000).samples) for row in rows]
    asked = judges.called(["whisper-demo-en", "pocketsphinx"])
    assert list(asked) == ["whisper-demo-en", "pocketsphinx"]
    for judge in asked.values():
        assert judge(said) < 0.3 < 0.6 < judge([(said[0][0], said[1][1]), (said[1][0], said[2][1])])


def test_who_cannot_be_had_is_told_before_the_corpus_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--asr nobody\.pt"):
        measure_codec.main(["--corpus", str(tmp_path), "--asr", "pocketsphinx", "--asr", "nobody.pt"])
