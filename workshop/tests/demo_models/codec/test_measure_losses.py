"""The stages of the codec: each speaks what it should, and codebooks of another corpus are refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from overtone.finetune.errors import UserError
from workshop.demo_models.codec import codebooks, codec_model, measure_codec, measure_losses, train_codec
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.training_clips import CodecClip, make_clip


def test_griffin_lim_speaks_the_spectra_that_it_is_given(clips: list[CodecClip]) -> None:
    spoken = [make_clip(measure_losses.run_griffin_lim(clip.features.log_mel(1.0)), clip.text, clip.voice) for clip in clips[:2]]
    found = measure_codec.measure_distances(clips[:2], spoken)
    assert found["all"] < 0.7 * found["mean_frame"]


def test_each_stage_gets_its_codes(clips: list[CodecClip], books: Codebooks) -> None:
    """The encoder finds the exact codes of the first clip, and other ones of the second; the decoder says which codes it got."""
    exact = [books.encode(books.project(clip.features.vectors(1.0))) for clip in clips[:2]]
    found = {id(clips[0].wave): exact[0], id(clips[1].wave): (exact[1] + 1) % 256}
    tokenizer = SimpleNamespace(
        encode=lambda wave, sr: SimpleNamespace(audio_codes=[found[id(wave)]]),
        decode=lambda given: ([given[0]["audio_codes"].float().mean(1).numpy()], 24000),
    )
    stages = measure_losses.speak_stages(tokenizer, books, clips[:2])
    assert [*stages] == ["recordings", "exact features", "exact codes", "codes", "exact codes, decoded", "codes, decoded"]
    equal = [np.array_equal(one, other) for one, other in zip(stages["exact codes"], stages["codes"], strict=True)]
    assert equal == [True, False] and len(stages["codes"][1]) == 1920 * len(exact[1])
    assert np.array_equal(stages["exact codes, decoded"][1], exact[1].float().mean(1))
    assert not np.array_equal(stages["codes, decoded"][1], exact[1].float().mean(1))


def test_codebooks_of_another_corpus_are_refused(clips: list[CodecClip]) -> None:
    fitted = codebooks.fit_codebooks(torch.cat(train_codec.collect_vectors(clips, 0)), 0)
    model = codec_model.build_model(seed=0)
    codec_model.fill_codebooks(model, fitted)
    restored = measure_losses.restore_codebooks(SimpleNamespace(model=model), clips)
    assert torch.equal(restored.axes, fitted.axes) and torch.equal(restored.acoustic, fitted.acoustic)
    with pytest.raises(UserError, match="not the one from which the codebooks"):
        measure_losses.restore_codebooks(SimpleNamespace(model=model), clips[:11])


def test_zero_sentences_are_refused() -> None:
    with pytest.raises(UserError, match="--sentences 0"):
        measure_losses.main(["--sentences", "0"])
