"""Log-probabilities clip by clip, in a batch of clips of different lengths."""

from __future__ import annotations

import torch

from overtone.recipes.qwen3_tts.model.clip_scores import collate_clips, score_codes
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE
from tests.recipes.voice_clone.conftest import Ready


@torch.no_grad()
def test_scores_of_a_batch_are_those_of_each_clip_alone(fresh: Ready) -> None:
    clips = [dict(sample) for sample in fresh.samples]
    clips[1] = {**clips[1], "labels": clips[1]["labels"].clone()}
    clips[1]["labels"][-1] = IGNORE  # cut off
    batch, tokens = collate_clips(clips)
    frames = [int(clip["frame_mask"].sum()) for clip in clips]
    assert tokens == [16 * count + (number != 1) for number, count in enumerate(frames)]
    alone = [score_codes(fresh.model, collate_clips([clip])[0]) for clip in clips]
    torch.testing.assert_close(score_codes(fresh.model, batch), torch.cat(alone), rtol=0, atol=2e-6)
    assert len({round(float(one.sum()), 3) for one in alone}) == len(clips)
