"""Rates, counts and averages are those of the public scripts, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.seed_tts_eval.whisper_recognizer import read_resampled
from overtone.recipes.speech.evaluation.seed_tts_eval.word_error_rate import Language, average_rate, count_utterance_errors
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins

GOLDEN = stand_ins.read_golden()


@pytest.mark.parametrize(("language", "lines"), [("en", 14), ("zh", 5)])
def test_lines_and_average_are_those_of_the_public_scripts(language: Language, lines: int) -> None:
    golden = GOLDEN["languages"][language]
    texts = {line.split("|")[0]: line.split("|")[3] for line in golden["meta"]}
    found = {name: count_utterance_errors(texts[name], transcript, language) for name, transcript in golden["transcripts"].items()}
    assert [one.format_line(f"audio/{name}.wav") for name, one in found.items()] == golden["wer"]
    assert len(found) == lines
    assert f"WER: {average_rate(list(found.values()))}%" == golden["wer_printed"]


def test_clips_are_resampled_like_by_the_public_script(tmp_path: Path) -> None:
    """Its stand-in recognizer answered with the energy of the samples that it got."""
    golden = GOLDEN["languages"]["en"]
    stand_ins.write_wave(tmp_path / "clip.wav", GOLDEN["sounds"]["audio/en-11.wav"])
    assert GOLDEN["sounds"]["audio/en-11.wav"]["rate"] != 16_000
    energy = format(float((read_resampled(tmp_path / "clip.wav") ** 2).sum()), ".9f")
    assert golden["transcripts"]["en-11"] == f" loudness {energy}"


def test_a_mean_of_no_rates_is_unknown() -> None:
    assert average_rate([]) is None


@pytest.mark.parametrize(("channels", "samples"), [(2, 100), (1, 0)])
def test_clips_without_one_channel_of_sound_are_refused(channels: int, samples: int, tmp_path: Path) -> None:
    stand_ins.write_wave(tmp_path / "clip.wav", {"seed": 1, "samples": samples, "rate": 16_000, "channels": channels})
    with pytest.raises(UserError, match="clip.wav: the protocol transcribes mono clips"):
        read_resampled(tmp_path / "clip.wav")
