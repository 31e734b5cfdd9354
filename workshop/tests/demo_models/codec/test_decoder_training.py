"""Decoder training: minima of the losses, consistent excerpts, and learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from workshop.demo_models.codec import codec_model, decoder_training, frame_features
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.decoder_training import EncodedClip
from workshop.demo_models.codec.training_clips import CodecClip


@pytest.fixture(scope="session")
def coded(clips: list[CodecClip], books: Codebooks) -> list[EncodedClip]:
    return [EncodedClip(clip, gain, books.encode(books.project(clip.features.vectors(gain)))) for gain in (1.0, 0.4) for clip in clips]


def test_an_excerpt_has_audio_features_and_codes_of_the_same_frames(coded: list[EncodedClip], books: Codebooks) -> None:
    for cut in decoder_training.draw_excerpts(coded, 6, 9, np.random.default_rng(0)):
        assert torch.equal(books.encode(books.project(cut.features.vectors(cut.gain))), cut.codes)
        assert cut.wave.shape == (9 * 1920,)
        power = frame_features.compute_mel_power(cut.wave)[8:]  # the first spectra depend on sound before the excerpt
        late = decoder_training.DELAY // frame_features.HOP
        assert torch.allclose((power + frame_features.FLOOR).log(), cut.features.log_mel(cut.gain)[8 - late : -late], atol=1e-3)


def test_the_front_loss_is_zero_for_features_one_step_early(coded: list[EncodedClip]) -> None:
    cut = coded[0].cut(2, 12)
    target = decoder_training.make_front_target(cut.features, cut.gain)
    early = torch.nn.functional.pad(target[1:], (0, 62, 0, 1)).T
    assert float(decoder_training.compute_front_loss(early[None], target[None])) == pytest.approx(0, abs=1e-9)
    assert 0.3 < target[:, :64].std() < 3


def test_the_wave_loss_is_smallest_for_the_audio_itself(coded: list[EncodedClip]) -> None:
    wave = torch.stack([one.cut(2, 11).wave for one in coded[:4]])
    shifted, softer = wave.roll(3, 1), 0.5 * wave
    noisy = wave + 0.05 * torch.randn(wave.shape, generator=torch.Generator().manual_seed(0))
    same, *others = (
        float(decoder_training.compute_wave_loss(other, wave)) for other in (wave, shifted, softer, noisy, torch.zeros_like(wave))
    )
    assert same < min(others)
    assert others[0] < others[1] < others[3]


def test_spectra_are_compared_with_those_of_the_codes_at_the_delay(coded: list[EncodedClip]) -> None:
    cut = coded[0].cut(0, 9)
    held = cut.features.log_mel(1.0)[None]
    same, early = (
        float(decoder_training.compare_spectra(torch.from_numpy(wave)[None], held)) for wave in (cut.wave.numpy(), coded[0].clip.cut(0, 9))
    )
    assert same == pytest.approx(0, abs=1e-4)
    assert early > 0.05
    silent = float(decoder_training.compare_spectra(torch.zeros_like(cut.wave)[None], torch.full_like(held, -99.0)))
    assert silent == pytest.approx(0, abs=1e-4), "no sound is below the floor"


def test_audio_learns_the_spectra_of_codes(coded: list[EncodedClip]) -> None:
    cut = coded[0].cut(0, 9)
    wave = (0.01 * torch.randn(1, len(cut.wave), generator=torch.Generator().manual_seed(0))).requires_grad_()
    optimizer = torch.optim.Adam([wave], lr=3e-3)
    found = []
    for _ in range(40):
        optimizer.zero_grad()
        distance = decoder_training.compare_spectra(wave, cut.features.log_mel(1.0)[None])
        distance.backward()
        optimizer.step()
        found.append(float(distance.detach()))
    assert found[-1] < 0.6 * found[0]


def test_codebooks_and_unused_projections_are_not_trained(model: object) -> None:
    free = decoder_training.select_parameters(model)
    assert "pre_transformer.input_proj.weight" in free
    assert not any("_codebook" in name or name.startswith("quantizer.rvq_first.input_proj") for name in free)
    assert any(name.startswith("quantizer.rvq_rest.output_proj") for name in free)


@pytest.mark.slow
def test_decoder_training_learns_and_resumes_bit_for_bit(
    books: Codebooks, clips: list[CodecClip], coded: list[EncodedClip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, torch.Tensor]] = []
    distances: list[float] = []
    compare = decoder_training.compare_spectra

    def record(audio: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        distance = compare(audio, held)
        distances.append(float(distance.detach()))
        return distance

    monkeypatch.setattr(decoder_training, "compare_spectra", record)
    spread = torch.cat([books.project(clip.features.vectors(1.0)) for clip in clips]).std(0)
    for name, front_stops, wave_stops in (("whole", (None,), (None,)), ("parts", (4, None), (2, None))):
        for until in front_stops:
            model = _ready(books, spread)
            decoder_training.train_front(model, coded, tmp_path / f"{name}-front", 0, 12, until)
        for until in wave_stops:
            model = _ready(books, spread)
            decoder_training.train_front(model, coded, tmp_path / f"{name}-front", 0, 12)  # the state that a resumed run finds
            loss = decoder_training.train_wave(model, books, coded, tmp_path / f"{name}-wave", 1, 4, until, compiled=False)
        found.append(model.decoder.state_dict())
    one, other = found
    assert all(torch.equal(one[name], other[name]) for name in one)
    weighted = decoder_training.HELD_SPECTRA_WEIGHT * sum(distances[-2:]) / 2
    assert 0 < weighted < loss < weighted + 3


def _ready(books: Codebooks, spread: torch.Tensor) -> object:
    model = codec_model.build_model(0)
    codec_model.fill_codebooks(model, books)
    decoder_training.initialize_decoder(model, spread, 0)
    return model
