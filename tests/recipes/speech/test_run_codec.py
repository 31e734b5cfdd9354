"""Tests of `overtone.recipes.speech.run_codec`, with the codec of the tiny models of codec_lm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.run_codec import CodecRecord, ExpectedCodec, choose_codec, open_recorded_codec, open_run_codec
from tests.recipes.codec_lm import tiny_models

USUAL = "hubertsiuzdak/snac_24khz"
EXPECTED = ExpectedCodec("Orpheus", USUAL, tiny_models.FAMILY.code_format)


def test_the_codec_is_the_given_one_or_the_bases_own_or_the_usual_one(tmp_path: Path) -> None:
    assert choose_codec("a/b", tmp_path, USUAL) == "a/b"
    assert choose_codec(None, tmp_path, USUAL) == USUAL
    tiny_models.write_codec(tmp_path / "speech_codec")
    assert choose_codec(None, tmp_path, USUAL) == str(tmp_path)


def test_a_codec_of_another_format_is_refused(tmp_path: Path) -> None:
    codec = tiny_models.write_codec(tmp_path / "codec")
    larger = replace(EXPECTED, format=replace(EXPECTED.format, codebook_size=4096, samples_per_frame=2048))
    with pytest.raises(UserError, match=r"7 codes from 0 to 15 in frames of 64 .*Orpheus reads 7 codes from 0 to 4095 in frames of 2048"):
        open_run_codec(str(codec), tmp_path, larger)
    assert open_run_codec(str(codec), tmp_path, EXPECTED).codebooks == 7


def test_a_codec_that_changed_since_the_training_is_refused(tmp_path: Path) -> None:
    codec = tiny_models.write_codec(tmp_path / "codec")
    record = CodecRecord(source=str(codec), digest=open_run_codec(str(codec), tmp_path, EXPECTED).digest())
    assert open_recorded_codec(record, tmp_path, EXPECTED).codebooks == 7
    with pytest.raises(UserError, match=r"is not the codec of this run \(digest .{12}…, expected 0123456789ab…\)"):
        open_recorded_codec(record.model_copy(update={"digest": "0123456789abcdef"}), tmp_path, EXPECTED)
