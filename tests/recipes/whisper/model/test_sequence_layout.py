"""Clips and texts as Whisper's input: openai-whisper's spectrogram and tokens, and rows that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import whisper
from transformers import WhisperFeatureExtractor
from whisper.tokenizer import get_tokenizer

from overtone.finetune.errors import UserError
from overtone.recipes.language.collation import IGNORE
from overtone.recipes.whisper.model.sequence_layout import (
    collate,
    compute_features,
    encode_text,
    lay_out,
    pad_features,
    read,
    read_clip,
)
from overtone.recipes.whisper.options import Options
from tests.recipes.whisper.tiny_whisper import ENGLISH, PROCESSOR, make_tone, write_tone


def read_tone(folder: Path, seconds: float = 0.5, **row: Any) -> dict[str, torch.Tensor]:
    write_tone(folder / "a.wav", seconds=seconds)
    return read({"audio": "a.wav", "text": "Good day.", "language": "english"} | row, PROCESSOR, folder)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.07, 3.001, 29.99, 30.0])
def test_the_spectrogram_is_that_of_openai_whisper_and_of_transformers(mels: int, seconds: float) -> None:
    samples = make_tone(1, seconds)
    found = pad_features(compute_features(samples, mels))
    assert found.shape == (mels, 3000)
    openai = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), n_mels=mels)
    stock = WhisperFeatureExtractor(mels)(samples, sampling_rate=16_000, return_tensors="pt")["input_features"][0]
    torch.testing.assert_close(found, openai, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, stock, rtol=0, atol=1e-4)


def test_a_short_clip_is_stored_without_the_silence_after_it() -> None:
    assert compute_features(make_tone(0, 1.0), 80).shape == (80, 103)


def test_a_file_of_another_rate_is_resampled(tmp_path: Path) -> None:
    """A tone of 310 Hz, which both rates hold."""
    other, same = (read_clip(write_tone(tmp_path / f"{rate}.wav", 1, 1.0, rate)) for rate in (44_100, 16_000))
    assert len(other) == len(same) == 16_000
    spectra = [np.abs(np.fft.rfft(samples)) for samples in (other, same)]
    assert spectra[0].argmax() == spectra[1].argmax() == 310 and spectra[0].max() == pytest.approx(spectra[1].max(), rel=0.02)


def test_the_tokens_are_those_that_inference_starts_with_then_text_and_end() -> None:
    tokens = get_tokenizer(True, language="de", task="translate")
    ids, start = lay_out({"text": " Good day. ", "language": "German", "task": "translate"}, PROCESSOR, 1.0)
    assert ids[:start] == [*tokens.sot_sequence_including_notimestamps] == [50258, 50261, 50358, 50363]
    assert ids[start:] == [*tokens.encode(" Good day."), tokens.eot] and ids[-1] == 50257
    ids, start = lay_out({"text": "Good day."}, ENGLISH, 1.0)
    assert ids == [50257, 50362, *get_tokenizer(False).encode(" Good day."), 50256] and start == 2


def test_a_text_starts_with_a_space_except_in_languages_without_any() -> None:
    tokens = get_tokenizer(True, language="zh", task="transcribe")
    assert tokens.decode(encode_text(" 大家好 ", tokens, "zh")) == "大家好" and tokens.decode(encode_text("Hi", tokens, "en")) == " Hi"


def test_segments_stand_between_their_times_and_the_start_asks_for_times() -> None:
    segments = [{"start": 0.0, "end": 1.3, "text": "Good day."}, {"start": 1.31, "end": 2, "text": "One."}]
    ids, start = lay_out({"segments": segments, "text": "Good  day. One.", "language": "en"}, PROCESSOR, 2.0)
    tokens = get_tokenizer(True, language="en", task="transcribe")
    assert ids[:start] == [*tokens.sot_sequence] and tokens.no_timestamps not in ids
    assert tokens.decode_with_timestamps(ids[start:-1]) == "<|0.00|> Good day.<|1.30|><|1.32|> One.<|2.00|>"
    assert ids[-1] == tokens.eot


def test_text_and_end_are_learned_and_each_token_predicts_the_next_one(tmp_path: Path) -> None:
    sample = read_tone(tmp_path)
    batch = collate([sample])
    ids, targets = batch.tensors["ids"][0].tolist(), batch.tensors["targets"][0].tolist()
    learned = [*get_tokenizer(True).encode(" Good day."), 50257]
    assert [number for number in targets if number != IGNORE] == learned and batch.targets["nll"] == len(learned)
    assert all(target in (IGNORE, following) for target, following in zip(targets, [*ids[1:], IGNORE], strict=True)), "shifted once"
    assert targets[:3] == [IGNORE] * 3 and ids[3] == 50363, "language, task and form are given at inference"


def test_padding_is_no_target(tmp_path: Path) -> None:
    short, long = read_tone(tmp_path), read_tone(tmp_path, text="Please hold the line, and press two.")
    batch = collate([short, long])
    assert batch.tensors["features"].shape == (2, 80, 3000)
    ends = [int(row.nonzero().max()) for row in (batch.tensors["targets"] != IGNORE)]
    assert ends == [len(short["ids"]) - 2, len(long["ids"]) - 2] and ends[0] < ends[1]
    assert batch.targets["nll"] == sum(int(sample["supervised"].sum()) for sample in (short, long))


def test_a_row_without_language_gets_that_of_the_options() -> None:
    processor = replace(PROCESSOR, options=Options(language="spanish"))
    for row in ({"text": "Uno."}, {"text": "Uno.", "language": "auto"}):
        assert lay_out(row, processor, 1.0)[0][1] == 50262
    assert lay_out({"text": "Un.", "language": "fr"}, processor, 1.0)[0][1] == 50265


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": " "}, r"text = ' ': expected the spoken words"),
        ({"text": None}, r"text = None: expected the spoken words"),
        ({"text": "word " * 500}, r"the text has 505 tokens .* and the decoder has 448 positions; split the clip"),
        ({"text": "stop <|endoftext|>"}, "has the name of a token of Whisper"),
        ({"language": None}, r'names no language; add "language" to it, or set --options.language'),
        ({"language": "klingon"}, r"the language 'klingon' is not one of the 99 of the base"),
        ({"language": "cantonese"}, r"the language 'cantonese' is not one of the 99"),
        ({"task": "sing"}, r"\"task\" is 'sing', expected transcribe or translate"),
        ({"audio": "b.wav"}, r"'b.wav' cannot be used"),
        ({"audio": 3}, r'"audio" must be the path of a file'),
        ({"audio": "../a.wav"}, "leads outside of"),
        ({"messages": []}, r"the row is a chat .*, and whisper trains on speech"),
        ({"segments": []}, r'"segments" must be a list'),
        ({"segments": [{"start": 0.4, "end": 0.2, "text": "Good day."}]}, r"segments\[0\]: from 0.4 to 0.2 s, which is not in order"),
        ({"segments": [{"start": 0, "end": 9, "text": "Good day."}]}, r"segments\[0\]: start and end are \[0, 9\], .* the 0.50 s of"),
        ({"segments": [{"start": 0, "end": 0.5, "text": "Good night."}]}, r'"text" and "segments" have different words'),
    ],
)
def test_a_row_that_cannot_be_learned_is_explained(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_tone(tmp_path, **row)


def test_a_text_that_just_fits_is_learned(tmp_path: Path) -> None:
    """444 words: the decoder gets its 448 positions, the end included."""
    assert len(read_tone(tmp_path, text="word " * 443)["ids"]) == 448
    with pytest.raises(UserError, match="the text has 449 tokens"):
        read_tone(tmp_path, text="word " * 444)


def test_a_translation_is_written_as_english() -> None:
    """After a space, although the language that is spoken has none between words."""
    spoken = lay_out({"text": "Good day.", "language": "zh", "task": "translate"}, PROCESSOR, 1.0)[0]
    english = lay_out({"text": "Good day.", "language": "en"}, PROCESSOR, 1.0)[0]
    assert spoken[4:] == english[4:] and spoken[:4] != english[:4]


def test_a_clip_of_more_than_30_seconds_or_without_sound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the clip 'a.wav' has 30.01 s, and Whisper takes 30 s; cut it"):
        read_tone(tmp_path, 30.01)
    assert len(read_tone(tmp_path, 30.0)["features"][0]) == 3000
    soundfile.write(tmp_path / "silent.wav", np.zeros(8000), 16_000)
    with pytest.raises(UserError, match=r"the clip 'silent.wav' cannot be used \(silent"):
        read_clip(tmp_path / "silent.wav")


@pytest.mark.parametrize("row", [{"language": "german"}, {"task": "translate"}])
def test_an_english_model_learns_english_alone(row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the base knows English alone; choose a base without .en"):
        lay_out({"text": "Eins."} | row, ENGLISH, 1.0)
