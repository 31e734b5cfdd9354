"""Figures of a Whisper: WER on words, transcribed as in data_prep."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE
from overtone.data_prep.transcription import demo_whisper, whisper_engine
from overtone.finetune.errors import UserError
from workshop.demo_models.corpus import make_corpus
from workshop.demo_models.whisper import measure_whisper
from workshop.demo_models.whisper.measure_whisper import VoiceTranscripts, join_recording, main, normalize_text


def test_the_wer_ignores_punctuation_and_case() -> None:
    assert normalize_text(" Where is the old clock? There.") == "where is the old clock there"
    transcripts = VoiceTranscripts(["The dog opens the door.", "Yes."], " the dog opens door yes", "The dog opens the door. Yes.", "", [])
    assert measure_whisper._compute_wer_percent([transcripts], "alone") == pytest.approx(100 / 6, abs=0.01)
    assert measure_whisper._compute_wer_percent([transcripts], "chunks") == 0
    assert measure_whisper._compute_wer_percent([transcripts], "long_form") == 100
    assert measure_whisper._compute_wer_percent([transcripts, transcripts], "alone") == pytest.approx(100 / 6, abs=0.01)


def test_a_joined_recording_has_pauses_between_its_sentences() -> None:
    waves = [np.full(MASTER_RATE, 0.5, np.float32)] * 2
    recording = join_recording(waves)
    assert recording.rate == SPEECH_RATE
    loud = np.abs(recording.samples) > 0.25
    assert loud.sum() == pytest.approx(2 * SPEECH_RATE, abs=100)
    assert np.count_nonzero(np.diff(loud.astype(int)) == 1) == 2
    assert not loud[: int(0.29 * SPEECH_RATE)].any() and not loud[-SPEECH_RATE // 2 :].any()


def test_a_sentence_without_text_counts_as_rejected() -> None:
    limit = measure_whisper.LEAST_SURE
    found = measure_whisper._summarize_log_probabilities([limit + 0.05, limit, limit - 0.4, None])
    assert found["p50"] == limit and found["kept_percent"] == 50.0
    assert measure_whisper._summarize_log_probabilities([None]) == {"kept_percent": 0.0}


def test_zero_sentences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--sentences 0: must be at least 1"):
        main(["--sentences", "0"])


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("flite") and shutil.which("text2wave")),
    reason="needs flite and festival (Debian: apt-get install flite festival festvox-kdlpc16k)",
)
def test_the_shipped_model_is_as_good_as_its_card_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other sentences than those of the card, in fewer voices: up to twice its WER plus 3 points is within random variation."""
    flite = tuple(voice for voice in make_corpus.VOICES if voice.engine == "flite")
    monkeypatch.setattr(make_corpus, "VOICES", flite)
    monkeypatch.setattr(measure_whisper, "VOICES", flite)
    make_corpus.write_corpus(tmp_path, seed=77, sentences_per_voice=30)
    figures = measure_whisper.measure_whisper(whisper_engine.load_whisper(demo_whisper.NAME, "cpu"), tmp_path, 30)
    card = demo_whisper.load_description().figures
    for name in ("alone", "chunks", "long_form", "new_voice_alone", "new_voice"):
        assert figures[name] <= 2 * card[name] + 3, name
    assert figures["sureness"]["p50"] > demo_whisper.load_description().least_sure > figures["sureness_of_invented"]["p50"]
