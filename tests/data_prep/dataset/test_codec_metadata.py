"""What is recorded about the codec of a dataset's codes, and read back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from overtone.data_prep.audio_codecs.interface import CodeFormat, read_code_format
from overtone.data_prep.audio_codecs.selection import DEFAULT_FORMAT, open_codec
from overtone.data_prep.dataset.codec_metadata import describe_codec, has_same_shape, read_codes_summary
from overtone.finetune.errors import UserError

SNAC_FORMAT = CodeFormat(24_000, 2048, 7, 64)


def store(folder: Path, **entries: object) -> Path:
    (folder / "codes").mkdir(parents=True)
    (folder / "codes" / "summary.json").write_text(json.dumps(entries))
    return folder


def test_the_codec_of_the_codes_is_read_back(tiny_snac: Path, tmp_path: Path) -> None:
    described = describe_codec(open_codec(str(tiny_snac)), "f00d")
    assert described == {"codec_digest": "f00d", "code_format": asdict(SNAC_FORMAT), "recipe": "codec_lm"}
    summary = read_codes_summary(store(tmp_path, clips=3, model="m", **described))
    assert (summary.code_format, summary.recipe, summary.codec_digest) == (SNAC_FORMAT, "codec_lm", "f00d")
    assert summary.entries == {"model": "m", **described}


def test_codes_without_a_record_are_assumed_to_be_of_the_default_codec(tmp_path: Path) -> None:
    """As in the files of the official Qwen3-TTS script."""
    summary = read_codes_summary(tmp_path)
    assert (summary.code_format, summary.recipe, summary.codec_digest) == (DEFAULT_FORMAT, "voice_clone", None)


def test_a_demo_codec_with_fewer_codes_has_the_same_shape(nano: Path, tiny_snac: Path) -> None:
    assert has_same_shape(read_code_format(open_codec(str(nano))), DEFAULT_FORMAT)
    assert not has_same_shape(read_code_format(open_codec(str(tiny_snac))), DEFAULT_FORMAT)


@pytest.mark.parametrize(
    "entry",
    [
        *({"recipe": found} for found in ("/tmp/recipe", 3, [], None)),
        *({"code_format": found} for found in ("snac", {"codebooks": 7}, None)),
        *({"codec_digest": found} for found in (3, None)),
    ],
)
def test_a_damaged_entry_is_reported_with_its_file(entry: dict, tmp_path: Path) -> None:
    valid = {"codec_digest": "f00d", "code_format": asdict(SNAC_FORMAT), "recipe": "codec_lm"}
    with pytest.raises(UserError, match=rf"{tmp_path}/codes/summary.json: {next(iter(entry))} .*; run: overtone codes {tmp_path}"):
        read_codes_summary(store(tmp_path, **{**valid, **entry}))
