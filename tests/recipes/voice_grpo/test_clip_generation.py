"""Clips from current weights: their log-probabilities are those of training, and none depends on the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model.base_voices import make_speech_processor, read_base_voices
from overtone.recipes.qwen3_tts.model.clip_scores import collate_clips, score_codes
from overtone.recipes.voice_grpo.clip_generation import ClipGenerator, ClipRequest
from overtone.recipes.voice_grpo.options import Options
from overtone.recipes.voice_grpo.text_rows import TextProcessor, lay_out_clip, read_row
from tests.recipes.voice_clone.conftest import Ready
from tests.recipes.voice_grpo.clip_rewards import ROWS

LONGEST = 40


@pytest.fixture(scope="module")
def processor(exported: Path) -> TextProcessor:
    voices = read_base_voices(exported)
    return TextProcessor(make_speech_processor(exported, voices), {"anna": None, "bert": "english"}, Options())


def open_generator(exported: Path, fresh: Ready, slots: int) -> ClipGenerator:
    vectors = fresh.loaded.buffers["speaker_vectors"]
    config = read_base_voices(exported).config
    made = ClipGenerator(exported, config, vectors, torch.float32, torch.device("cpu"), slots)
    made.update_weights(fresh.model.named_parameters())
    return made


def make_requests(processor: TextProcessor) -> list[ClipRequest]:
    found = []
    for number, row in enumerate(ROWS):
        text = read_row(
            {**row, "language": "auto" if number % 2 else "english"},
            processor,
        )
        language = int(text["language"])
        found.append(ClipRequest(text["prompt"].tolist(), int(text["speaker"]), None if language < 0 else language, 7 + number))
    return found


@torch.no_grad()
def test_each_log_probability_is_that_of_training(exported: Path, fresh: Ready, processor: TextProcessor) -> None:
    clips = open_generator(exported, fresh, 4).generate(make_requests(processor), LONGEST)
    assert {clip.ended for clip in clips} == {True, False} and len({len(clip.frames) for clip in clips}) > 2
    texts = [read_row({**row, "language": "auto" if number % 2 else "english"}, processor) for number, row in enumerate(ROWS)]
    samples = [lay_out_clip(text, clip.codes, clip.ended, processor) for text, clip in zip(texts, clips, strict=True)]
    batch, tokens = collate_clips(samples)
    assert tokens == [16 * len(clip.frames) + clip.ended for clip in clips] == [len(clip.scores) for clip in clips]
    expected = score_codes(fresh.model, batch)
    torch.testing.assert_close(torch.tensor([score for clip in clips for score in clip.scores]), expected, rtol=0, atol=2e-5)


def test_a_clip_depends_on_its_request_alone(exported: Path, fresh: Ready, processor: TextProcessor) -> None:
    requests = make_requests(processor)
    together, few = (open_generator(exported, fresh, slots).generate(requests, LONGEST) for slots in (8, 4))
    again = open_generator(exported, fresh, 4).generate(requests[::-1], LONGEST)[::-1]
    for one, other, third in zip(together, few, again, strict=True):
        assert torch.equal(one.codes, other.codes) and torch.equal(one.codes, third.codes)
        assert one.scores == other.scores == third.scores and one.ended == other.ended
    assert len({tuple(clip.codes.flatten().tolist()) for clip in together}) == len(requests)


def test_other_weights_speak_otherwise(exported: Path, fresh: Ready, processor: TextProcessor) -> None:
    generator, requests = open_generator(exported, fresh, 4), make_requests(processor)[:1]
    (before,) = generator.generate(requests, LONGEST)
    generator.update_weights((name, value * 2 if "norm" in name else value) for name, value in fresh.model.named_parameters())
    (after,) = generator.generate(requests, LONGEST)
    assert not torch.equal(before.codes[:3], after.codes[:3]), "a norm is a part of the decoder's own tables"


def test_a_missing_weight_is_an_error(exported: Path, fresh: Ready) -> None:
    generator = open_generator(exported, fresh, 4)
    with pytest.raises(UserError, match="training has no weights codec_head.weight, which generation needs"):
        generator.update_weights((name, value) for name, value in fresh.model.named_parameters() if "codec_head" not in name)
