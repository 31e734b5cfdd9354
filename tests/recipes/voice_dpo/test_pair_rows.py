"""Tests of `overtone.recipes.voice_dpo.pair_rows`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.preferences.batch_targets import KL, LOSS
from overtone.recipes.qwen3_tts.model.base_voices import make_speech_processor, read_base_voices
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE, SpeechProcessor
from overtone.recipes.voice_dpo import pair_rows as reading

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def processor(exported: Path) -> SpeechProcessor:
    voices = read_base_voices(exported)
    return make_speech_processor(exported, voices)


def test_a_pair_is_both_clips_end_to_end(processor: SpeechProcessor, pair_rows: Rows) -> None:
    row = pair_rows()[1]
    sides = reading.split_sides(reading.read_row(row, processor))
    for name, clip in zip(reading.SIDES, sides, strict=True):
        assert clip["codes"][clip["frame_mask"]].tolist() == row[f"{name}_codes"]
    assert torch.equal(sides[0]["text"][:10], sides[1]["text"][:10])
    assert sides[0]["labels"][-1] == processor.ids.codec_eos and sides[1]["labels"][-1] == IGNORE, "this one was cut off"


def test_each_answer_has_all_codes_of_its_clip_and_the_end(processor: SpeechProcessor, pair_rows: Rows) -> None:
    rows = pair_rows()
    batch = reading.collate([reading.read_row(row, processor) for row in rows])
    counts = [16 * len(row[f"{side}_codes"]) + row[f"{side}_ended"] for row in rows for side in reading.SIDES]
    assert (batch.tensors["answers"] < sum(counts)).sum(1).tolist() == counts
    assert batch.targets[KL] == sum(counts) and batch.targets[LOSS] == len(rows)
    assert sorted(batch.tensors["order"].tolist()) == [*range(sum(counts))]
    codes = batch.tensors["codes"].flatten(0, 1)[batch.tensors["frame_rows"]]
    labels = batch.tensors["labels"].flatten()[batch.tensors["target_rows"] + 1]
    targets = torch.cat([labels, codes[:, 1:].flatten()])[batch.tensors["order"]].tolist()
    start = 0
    for row in rows:
        for side in reading.SIDES:
            frames = row[f"{side}_codes"]
            end = [processor.ids.codec_eos] if row[f"{side}_ended"] else []
            expected = [frame[0] for frame in frames] + end + [code for frame in frames for code in frame[1:]]
            assert targets[start : start + len(expected)] == expected
            start += len(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen_codes": None}, "the row has no chosen_codes; `overtone pairs` makes rows"),
        ({"rejected_codes": [[1, 2]]}, r"rejected_codes, frame 0: \[1, 2\] is not a list of 16 codes"),
        ({"rejected_codes": [[64] * 16]}, r"rejected_codes, frame 0, codebook 0: 64 is outside of 0 … 63"),
        ({"chosen_ended": "yes"}, "chosen_ended = 'yes': expected true, or false"),
        ({"speaker": "carl"}, "speaker 'carl' is not in the training data; it has anna, bert"),
        ({"speaker": None}, "the row has no speaker"),
        ({"language": "elvish"}, "language 'elvish' is not known"),
        ({"text": " "}, "expected the spoken words"),
        ({"prompt": "Hi"}, "the row is a chat .* and voice_dpo trains on speech"),
        ({"chosen_codes": [[0] * 16] * 3000}, "3000 frames and .* take .* positions"),
    ],
)
def test_a_bad_row_is_refused(processor: SpeechProcessor, pair_rows: Rows, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        reading.read_row({**pair_rows()[0], **change}, processor)


def test_a_pair_of_equal_clips_is_refused(processor: SpeechProcessor, pair_rows: Rows) -> None:
    row = pair_rows()[0]
    with pytest.raises(UserError, match="are the same"):
        reading.read_row({**row, "rejected_codes": row["chosen_codes"]}, processor)


def test_a_dummy_pair_has_the_positions_that_are_wanted(processor: SpeechProcessor) -> None:
    for positions in (26, 301):
        assert len(reading.make_dummy_pair(positions, processor.ids)["text"]) == positions
