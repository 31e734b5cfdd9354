"""Shifted clips have the codes of their audio after silence, each at its own place of the frame grid; missing inputs are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME
from overtone.finetune.errors import UserError
from workshop.demo_models.base import codes_at_frame_offsets

ROWS = [{"audio": f"{number}.flac", "text": f"clip {number}.", "speaker": "slt"} for number in range(200)]


def test_shifts_are_parts_of_a_frame_and_clips_are_chosen_once() -> None:
    chosen = codes_at_frame_offsets.choose_shifts(ROWS, 150, seed=0)
    assert len({row["audio"] for row, _ in chosen}) == 150
    shifts = [shift for _, shift in chosen]
    assert min(shifts) >= 0 and max(shifts) < SAMPLES_PER_FRAME and len(set(shifts)) > 100
    assert chosen == codes_at_frame_offsets.choose_shifts(ROWS, 150, seed=0) != codes_at_frame_offsets.choose_shifts(ROWS, 150, seed=1)
    assert len(codes_at_frame_offsets.choose_shifts(ROWS, 1000, seed=0)) == len(ROWS)


@pytest.mark.slow
def test_a_shifted_clip_has_the_codes_of_its_audio_after_silence(sound: Callable[..., np.ndarray], tmp_path: Path) -> None:
    waves = [sound(110 + 20 * number, 0.6 + 0.1 * (number % 4), number) for number in range(10)]
    for name, chosen in (("train", range(8)), ("val", range(8, 10))):
        for number in chosen:
            soundfile.write(tmp_path / ROWS[number]["audio"], waves[number], 24_000, subtype="FLOAT", format="WAV")
        (tmp_path / f"base-{name}.jsonl").write_text("".join(json.dumps(ROWS[number]) + "\n" for number in chosen))
    options = ["--corpus", str(tmp_path), "--codec", "codec-demo", "--clips", "6", "--workers", "1"]
    assert codes_at_frame_offsets.main(options) == 0
    codec = qwen3_tts_codec.load_codec(qwen3_tts_codec.find_codec("codec-demo"), "cpu")
    for name, chosen in (("train", range(8)), ("val", range(8, 10))):
        written = [json.loads(line) for line in (tmp_path / f"base-{name}-shifted.jsonl").read_text().splitlines()]
        expected = codes_at_frame_offsets.choose_shifts([ROWS[number] for number in chosen], 6, seed=0)
        assert [row["text"] for row in written] == [row["text"] for row, _ in expected]
        for made, (row, shift) in zip(written, expected, strict=True):
            wave = np.concatenate([np.zeros(shift, np.float32), waves[ROWS.index(row)]])
            assert np.array_equal(made["audio_codes"], qwen3_tts_codec.encode_clips(codec, [wave])[0])


def test_missing_inputs_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"base-val.jsonl is missing; create it: python -m .*\.base\.prepare_base_training"):
        codes_at_frame_offsets.main(["--corpus", str(tmp_path)])
    for name in ("train", "val"):
        (tmp_path / f"base-{name}.jsonl").write_text("")
    with pytest.raises(UserError, match="no-such-codec"):
        codes_at_frame_offsets.main(["--corpus", str(tmp_path), "--codec", "no-such-codec"])
