"""Teaching the decoder: losses that are zero where they must be, cuts whose parts belong together, and that it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.voice_clone.studio.codec import codec_model, decoder, features
from recipes.voice_clone.studio.codec.codebooks import Books
from recipes.voice_clone.studio.codec.decoder import Coded
from recipes.voice_clone.studio.codec.training_clips import Clip


@pytest.fixture(scope="session")
def coded(clips: list[Clip], books: Books) -> list[Coded]:
    return [Coded(clip, gain, books.codes(books.coordinates(clip.heard.vectors(gain)))) for gain in (1.0, 0.4) for clip in clips]


def test_a_cut_is_sound_features_and_codes_of_the_same_frames(coded: list[Coded], books: Books) -> None:
    for cut in decoder.draw(coded, 6, 9, np.random.default_rng(0)):
        assert torch.equal(books.codes(books.coordinates(cut.heard.vectors(cut.gain))), cut.codes)
        assert cut.wave.shape == (9 * 1920,)
        power = features.mel_power(cut.wave)[8:]  # the first spectra look back before the cut
        assert torch.allclose((power + features.FLOOR).log(), cut.heard.log_mel(cut.gain)[8:], atol=1e-3)


def test_the_front_is_right_when_it_tells_the_features_one_step_early(coded: list[Coded]) -> None:
    cut = coded[0].cut(2, 12)
    target = decoder.front_target(cut.heard, cut.gain)
    early = torch.nn.functional.pad(target[1:], (0, 62, 0, 1)).T
    assert float(decoder.front_loss(early[None], target[None])) == pytest.approx(0, abs=1e-9)
    assert 0.3 < target[:, :64].std() < 3


def test_the_loss_on_sound_is_least_for_the_sound_itself(coded: list[Coded]) -> None:
    wave = torch.stack([one.cut(2, 11).wave for one in coded[:4]])
    shifted, softer = wave.roll(3, 1), 0.5 * wave
    noisy = wave + 0.05 * torch.randn(wave.shape, generator=torch.Generator().manual_seed(0))
    same, *others = (float(decoder.wave_loss(other, wave)) for other in (wave, shifted, softer, noisy, torch.zeros_like(wave)))
    assert same < min(others)
    assert others[0] < others[1] < others[3]


def test_what_is_given_is_not_trained(model: object) -> None:
    free = decoder.taught(model)
    assert "pre_transformer.input_proj.weight" in free
    assert not any("_codebook" in name or name.startswith("quantizer.rvq_first.input_proj") for name in free)
    assert any(name.startswith("quantizer.rvq_rest.output_proj") for name in free)


@pytest.mark.slow
def test_it_learns_and_resumes_bit_for_bit(books: Books, clips: list[Clip], coded: list[Coded], tmp_path: Path) -> None:
    found = []
    spread = torch.cat([books.coordinates(clip.heard.vectors(1.0)) for clip in clips]).std(0)
    for name, front_stops, wave_stops in (("whole", (None,), (None,)), ("parts", (4, None), (2, None))):
        for until in front_stops:
            model = _ready(books, spread)
            decoder.teach_front(model, coded, tmp_path / f"{name}-front", 0, 12, until)
        for until in wave_stops:
            model = _ready(books, spread)
            decoder.teach_front(model, coded, tmp_path / f"{name}-front", 0, 12)  # as a run that goes on finds it
            loss = decoder.teach_wave(model, coded, tmp_path / f"{name}-wave", 1, 4, until, compiled=False)
        found.append(model.decoder.state_dict())
    one, other = found
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert loss < 3


def _ready(books: Books, spread: torch.Tensor) -> object:
    model = codec_model.build(0)
    codec_model.fill_books(model, books)
    decoder.prepare(model, spread, 0)
    return model
