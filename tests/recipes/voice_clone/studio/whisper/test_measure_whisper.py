"""The figures of a Whisper: counted on words, heard as data_prep hears."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE
from data_prep.transcription import demo_whisper, whisper_engine
from finetune.errors import UserError
from finetune.storage import demo_models
from recipes.voice_clone.studio.corpus import make_corpus
from recipes.voice_clone.studio.whisper import measure_whisper
from recipes.voice_clone.studio.whisper.measure_whisper import Heard, main, one_recording, plain


def test_marks_and_capitals_are_no_words() -> None:
    assert plain(" Where is the old clock? There.") == "where is the old clock there"
    heard = Heard(["The dog opens the door.", "Yes."], " the dog opens door yes", "The dog opens the door. Yes.", "", [])
    assert measure_whisper._percent([heard], "alone") == pytest.approx(100 / 6, abs=0.01)
    assert measure_whisper._percent([heard], "chunks") == 0
    assert measure_whisper._percent([heard], "long_form") == 100
    assert measure_whisper._percent([heard, heard], "alone") == pytest.approx(100 / 6, abs=0.01)


def test_a_recording_holds_its_sentences_between_pauses() -> None:
    waves = [np.full(MASTER_RATE, 0.5, np.float32)] * 2
    recording = one_recording(waves)
    assert recording.rate == SPEECH_RATE
    loud = np.abs(recording.samples) > 0.25
    assert loud.sum() == pytest.approx(2 * SPEECH_RATE, abs=100)
    assert np.count_nonzero(np.diff(loud.astype(int)) == 1) == 2
    assert not loud[: int(0.29 * SPEECH_RATE)].any() and not loud[-SPEECH_RATE // 2 :].any()


def test_sureness_counts_what_says_nothing_as_not_kept() -> None:
    limit = measure_whisper.LEAST_SURE
    found = measure_whisper._sureness([limit + 0.05, limit, limit - 0.4, None])
    assert found["p50"] == limit and found["kept_percent"] == 50.0
    assert measure_whisper._sureness([None]) == {"kept_percent": 0.0}


def test_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--sentences 0: at least 1"):
        main(["--sentences", "0"])


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")
def test_the_shipped_model_is_as_good_as_its_card_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sentences than those of the card, in fewer voices: twice its word error rate and a little more is within chance."""
    if not demo_models.is_shipped(demo_whisper.NAME):
        pytest.skip("this copy has no whisper-demo-en yet: python -m recipes.voice_clone.studio.whisper.pack_whisper makes it")
    flite = tuple(voice for voice in make_corpus.VOICES if voice.engine == "flite")
    monkeypatch.setattr(make_corpus, "VOICES", flite)
    monkeypatch.setattr(measure_whisper, "VOICES", flite)
    make_corpus.make(tmp_path, seed=77, sentences_per_voice=30)
    figures = measure_whisper.measure(whisper_engine.load_whisper(demo_whisper.NAME, "cpu"), tmp_path, 30)
    told = demo_whisper.load_description().figures
    for name in ("alone", "chunks", "long_form", "new_voice_alone", "new_voice"):
        assert figures[name] <= 2 * told[name] + 3, name
    assert figures["sureness"]["p50"] > demo_whisper.load_description().least_sure > figures["sureness_of_invented"]["p50"]
