"""Tests of `overtone.recipes.speech.evaluation.intelligibility`, with errors counted by hand and a real Whisper model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import Audio
from overtone.data_prep.segmentation.clip_segmentation import TextUnit, WhisperScores
from overtone.data_prep.transcription import demo_whisper
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts, Recognizer

TEXTS = ("The train leaves at seven.", "She counted the boats.", "Nobody had seen the sky.")


def test_errors_equal_those_counted_by_hand() -> None:
    # the | cat sat -> sits | on the mat | + today: one substitution, one insertion, of six words
    found = intelligibility.count_errors("The cat sat on the mat.", "the cat sits on the mat today", "english")
    # sat -> sits: a -> i and s inserted before t (2 edits), " today" inserted (6)
    assert found == ErrorCounts(words=6, wrong_words=2, characters=22, wrong_characters=8)
    assert intelligibility.count_errors("The cat.", "", "english") == ErrorCounts(2, 2, 7, 7)


def test_spelling_numbers_and_contractions_are_normalised_in_english() -> None:
    found = intelligibility.count_errors("Mr. O'Neil's colour isn't twenty-one!", "mister o'neil's color is not 21", "english")
    assert found is not None and found.wrong_words == 0


def test_other_languages_lose_case_and_punctuation_only() -> None:
    assert intelligibility.normalize("Schön, „nicht“ wahr?", "german") == "schön nicht wahr"
    assert intelligibility.normalize("isn't twenty-one", "auto") == "isn t twenty one"


def test_languages_without_spaces_are_compared_by_character() -> None:
    assert intelligibility.count_errors("你好世界。", "你好世", "chinese") == ErrorCounts(
        words=4, wrong_words=1, characters=7, wrong_characters=2
    )


@pytest.mark.parametrize(("language", "text"), [("cantonese", "你好世界"), ("thai", "กขคง"), ("lao", "ກຂຄງ"), ("myanmar", "ကခဂဃ")])
def test_a_language_without_spaces_is_compared_by_characters(language: str, text: str) -> None:
    """One of four characters is missing, and not the only word."""
    found = intelligibility.count_errors(text, text[:3], language)
    assert found is not None and (found.words, found.wrong_words) == (4, 1)


def test_a_text_that_is_empty_after_normalisation_has_no_errors() -> None:
    assert intelligibility.count_errors("(laughs)", "ha", "english") is None


def test_words_in_brackets_may_be_spoken_or_not() -> None:
    for transcript in ("He said (and meant it) yes.", "He said, and meant it, yes", "he said yes"):
        errors = intelligibility.count_errors("He said (and meant it) yes.", transcript, "english")
        assert errors is not None and errors.wrong_words == errors.wrong_characters == 0
        assert errors.words == len(intelligibility.align_words("He said (and meant it) yes.", transcript, "english"))
    errors = intelligibility.count_errors("He said (and meant it) yes.", "he said and met it yes", "english")
    assert errors is not None and (errors.words, errors.wrong_words) == (6, 1)


def test_shuffled_texts_raise_the_rate() -> None:
    right = [intelligibility.count_errors(text, text, "english") for text in TEXTS]
    shuffled = [intelligibility.count_errors(text, other, "english") for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
    assert sum(one.wrong_words for one in right if one) == 0
    assert sum(one.wrong_words for one in shuffled if one) >= 10, "nearly all of the 14 words"


def test_whisper_transcribes_and_gives_the_same_result_again(babbler: Path) -> None:
    intelligibility.check_whisper(str(babbler))
    model = intelligibility.load_whisper(str(babbler))
    wave = np.sin(2 * np.pi * 220 * np.arange(24_000) / 24_000).astype(np.float32)
    first, again = (intelligibility.transcribe(model, wave, "english") for _ in range(2))
    assert first == again and first.problem == "" and first.text
    assert intelligibility.transcribe(model, wave[:0], "english").text == ""
    assert intelligibility.choose_language(model, "auto") == "auto" and intelligibility.choose_language(model, "german") == "german"


class PositionSensitiveWhisper:
    """Stands in for the engine: what it transcribes depends on the seconds of silence before the clip."""

    def __init__(self, said: dict[float, tuple[str, float]]) -> None:
        """`said`: seconds → (text, mean log-probability)."""
        self.said, self.pauses = said, list[float]()

    def transcribe_clips(self, _model: object, clips: Sequence[tuple[Audio, object]], _language: object) -> list[list[TextUnit]]:
        return [self.transcribe(audio) if len(audio.samples) else [] for audio, _ in clips]

    def transcribe(self, audio: Audio) -> list[TextUnit]:
        pause = round(float(np.argmax(np.abs(audio.samples) > 0.1)) / audio.rate, 1)
        self.pauses.append(pause)
        text, sure = self.said[pause]
        scores = WhisperScores(
            language="english",
            avg_logprob=sure,
            compression_ratio=1.0,
            no_speech_prob=0.0,
            temperature=0.0,
            complete=True,
            language_prob=None,
        )
        failed = [TextUnit(text="", start=1, stop=2, error="no memory")] if text.endswith("!") else []
        return [TextUnit(text=f" {word}", start=0, stop=1, heard=scores) for word in text.split()] + failed


@pytest.mark.parametrize(
    ("limit", "said", "text", "pauses"),
    [
        (-0.05, {0.0: ("a boat", -0.04)}, "a boat", [0.0]),
        (-0.05, {0.0: ("no word", -0.3), 0.3: ("a boat", -0.02), 1.0: ("a bow", -0.1)}, "a boat", [0.0, 0.3, 1.0]),
        (-0.05, {0.0: ("a boat", -0.1), 0.3: ("no word", -0.4), 1.0: ("a bow", -0.2)}, "a boat", [0.0, 0.3, 1.0]),
        (-0.05, {0.0: ("", 0.0), 0.3: ("", 0.0), 1.0: ("a boat", -0.9)}, "a boat", [0.0, 0.3, 1.0]),
        (-0.05, {0.0: ("a boat", -0.3), 0.3: ("half a text!", -0.01), 1.0: ("a bow", -0.4)}, "a boat", [0.0, 0.3, 1.0]),
        (-np.inf, {0.0: ("no word", -5.0)}, "no word", [0.0]),
    ],
)
def test_an_unsure_transcript_is_the_most_probable_of_three(
    monkeypatch: pytest.MonkeyPatch, limit: float, said: dict[float, tuple[str, float]], text: str, pauses: list[float]
) -> None:
    engine, wave = PositionSensitiveWhisper(said), np.full(12_000, 0.5, np.float32)
    monkeypatch.setattr(intelligibility.whisper_engine, "transcribe_clips", engine.transcribe_clips)
    assert intelligibility.transcribe(Recognizer(None, limit), wave, "english").text == text
    assert engine.pauses == pauses


def test_only_the_unsure_clips_of_several_are_transcribed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PositionSensitiveWhisper({0.0: ("a boat", -0.04), 0.1: ("no word", -0.3), 0.4: ("a bow", -0.2), 1.1: ("a crow", -0.1)})
    monkeypatch.setattr(intelligibility.whisper_engine, "transcribe_clips", engine.transcribe_clips)
    sure = np.full(12_000, 0.5, np.float32)
    found = intelligibility.transcribe_clips(Recognizer(None, -0.05), [sure, np.pad(sure, (2400, 0)), sure[:0]], "english")
    assert [(one.text, one.again) for one in found[:2]] == [("a boat", False), ("a crow", True)]
    assert engine.pauses[:2] == [0.0, 0.1] and engine.pauses[-2:] == [0.4, 1.1]


def test_only_the_demo_s_whisper_transcribes_again(babbler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert intelligibility.load_whisper(str(babbler)).retry_below == -np.inf
    monkeypatch.setattr(intelligibility.whisper_engine, "load_whisper", lambda *_: None)
    assert intelligibility.load_whisper("whisper-demo-en") == Recognizer(None, demo_whisper.RETRY_BELOW)
    assert intelligibility.load_whisper("small").retry_below == -np.inf
    assert intelligibility.describe_retry("small") == {} and intelligibility.describe_retry("whisper-demo-en")["retry_below"] == -0.05


def test_a_language_that_whisper_does_not_support_is_refused(babbler: Path) -> None:
    model: Any = intelligibility.load_whisper(str(babbler))
    intelligibility.require_languages(model, ["auto", "german", "english"])
    with pytest.raises(UserError, match="not supported by Whisper"):
        intelligibility.require_languages(model, ["german", "klingon"])


def test_an_unknown_model_name_is_refused_before_loading() -> None:
    with pytest.raises(UserError, match="--asr enormous: neither a file nor one of"):
        intelligibility.check_whisper("enormous")


def test_the_wer_of_several_texts_weighs_words_equally() -> None:
    said = "one two three four five six seven eight nine"
    assert intelligibility.transcripts_wer([(said, said), ("cat", "dog")], "german") == 0.1


def test_words_are_aligned_as_the_word_error_rate_counts_them() -> None:
    aligned = intelligibility.align_words("She counted the old boats.", "he counted old boats again", "english")
    assert [(one.expected, one.transcribed) for one in aligned] == [
        *(("she", "he"), ("counted", "counted"), ("the", ""), ("old", "old"), ("boats", "boats"), ("", "again"))
    ]
    errors = intelligibility.count_errors("She counted the old boats.", "he counted old boats again", "english")
    assert errors is not None and sum(one.wrong for one in aligned) == errors.wrong_words == 3
    assert intelligibility.align_words("?!", "hello", "english") == []
    assert [one.transcribed for one in intelligibility.align_words("One.", "", "english")] == [""]


def test_a_recognizer_is_named_without_its_folder_and_the_demo_s_with_its_origin() -> None:
    assert [intelligibility.describe_recognizer(name) for name in ("small", "/home/me/tiny.en.pt")] == ["small", "tiny.en.pt"]
    assert intelligibility.describe_recognizer("whisper-demo-en").endswith("that we trained on the voices of the demo")


def test_a_digest_of_weights_is_that_of_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.pt").write_bytes(b"weights")
    (tmp_path / "model.bin").write_bytes(b"weights")
    monkeypatch.setattr(intelligibility.faster_whisper_engine, "is_faster_whisper", lambda name: name.startswith("faster-whisper:"))
    monkeypatch.setattr(intelligibility.faster_whisper_engine, "fetch_weights", lambda _: tmp_path / "model.bin")
    first = intelligibility.digest_whisper(str(tmp_path / "mine.pt"))
    assert first == intelligibility.digest_whisper(f"faster-whisper:{tmp_path}") == files.digest(tmp_path / "model.bin")
    (tmp_path / "mine.pt").write_bytes(b"others")
    assert intelligibility.digest_whisper(str(tmp_path / "mine.pt")) != first
