"""`generate` of the recipe: recordings in, text or words with times out."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.segmentation.clip_segmentation import TextUnit, WhisperScores
from overtone.finetune.errors import UserError
from overtone.recipes.whisper.inference import file_transcription
from overtone.recipes.whisper.inference.file_transcription import TimedWord, Transcript
from tests.recipes.whisper.tiny_whisper import write_tone

SCORES = WhisperScores(language="english", avg_logprob=0.0, compression_ratio=1.0, no_speech_prob=0.0, temperature=0.0, complete=True)


def test_words_are_joined_and_timed(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tone(tmp_path / "a.wav", seconds=2.0)
    units = [TextUnit(text=" Good", start=2400, stop=12_000, heard=SCORES), TextUnit(text=" day.", start=12_000, stop=24_000, heard=SCORES)]
    monkeypatch.setattr(file_transcription.whisper_engine, "transcribe_recording", lambda *_, report: units)
    assert file_transcription.generate(exported, ["--audio", str(path)]) == 0
    assert capsys.readouterr().out == "Good day.\n"
    assert file_transcription.generate(exported, ["--audio", str(path), "--words"]) == 0
    assert capsys.readouterr().out == "     0.10      0.50  Good\n     0.50      1.00  day.\n"


def test_the_language_is_that_of_most_words() -> None:
    found = Transcript([TimedWord(" Good", 0.1, 0.5), TimedWord(" day.", 0.5, 1.0)], "english", 2.0)
    assert found.text == "Good day."


def test_files_that_cannot_be_decoded_are_explained(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--audio .*gone.wav: no such file"):
        file_transcription.generate(exported, ["--audio", str(tmp_path / "gone.wav")])
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(UserError, match=r"'text.wav' cannot be transcribed"):
        file_transcription.generate(exported, ["--audio", str(tmp_path / "text.wav")])


def test_a_failure_of_the_model_is_not_an_empty_text(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tone(tmp_path / "a.wav", seconds=2.0)
    failed = [TextUnit(text="", start=24_000, stop=48_000, error="out of memory")]
    monkeypatch.setattr(file_transcription.whisper_engine, "transcribe_recording", lambda *_, report: failed)
    with pytest.raises(UserError, match=r"'a.wav': the model failed at 1.0 s \(out of memory\)"):
        file_transcription.generate(exported, ["--audio", str(path)])


@pytest.mark.parametrize(("file", "name"), [("model.pt", "{}/model.pt"), ("model.bin", "faster-whisper:{}"), ("model.safetensors", "{}")])
def test_an_export_of_any_format_is_loaded(file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(file_transcription.whisper_engine, "load_whisper", lambda given, _, option: (given, option))
    assert file_transcription.load_model(tmp_path) == (name.format(tmp_path), "--model")


def test_a_model_that_translates_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"task": "translate"}')
    with pytest.raises(UserError, match="was trained to translate, and `generate` and `serve` only transcribe"):
        file_transcription.read_transcription_defaults(tmp_path)


def test_languages_are_known_by_name_and_code(exported: Path, english_base: Path) -> None:
    model = file_transcription.load_model(exported)
    assert [file_transcription.find_language(given, model) for given in (None, "DE", "german", "castilian")] == [
        None,
        "german",
        "german",
        "castilian",
    ]
    with pytest.raises(UserError, match="the language 'klingon' is not one of Whisper's"):
        file_transcription.find_language("klingon", model)
    english = file_transcription.load_model(english_base)
    assert file_transcription.find_language("en", english) == "english"
    with pytest.raises(UserError, match="the language is 'de', and this model knows English alone"):
        file_transcription.find_language("de", english)
