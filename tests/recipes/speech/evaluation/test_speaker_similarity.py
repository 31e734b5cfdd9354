"""Tests of `overtone.recipes.speech.evaluation.speaker_similarity`, with values computed by hand and with real encoders."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from safetensors.torch import load_file

from overtone.data_prep.audio_codecs.selection import open_speaker_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.recipes.speech.evaluation import speaker_similarity
from overtone.recipes.speech.evaluation.speaker_similarity import SpeakerClipVectors
from tests.recipes.voice_clone import conftest as made

A1, A2, A3, B1 = (Path(name) for name in ("a1", "a2", "a3", "b1"))


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def by_hand(standardized: bool = False) -> SpeakerClipVectors:
    return SpeakerClipVectors({"a": {A1: vector(2, 0), A2: vector(0, 5), A3: vector(1, 1)}, "b": {B1: vector(-1, 0)}}, standardized)


def test_similarity_is_the_cosine_to_the_mean_direction() -> None:
    voices = by_hand()
    assert voices.similarity(vector(3, 3), "a") == pytest.approx(1.0)
    assert voices.similarity(vector(3, 3), "a", frozenset({A2, A3})) == pytest.approx(2**-0.5)
    assert voices.similarity(vector(7, 0), "b") == pytest.approx(-1.0)


def test_without_another_clip_similarity_is_unknown() -> None:
    assert by_hand().similarity(vector(1, 0), "b", frozenset({B1})) is None
    assert by_hand().similarity(vector(1, 0), "nobody") is None


def test_similarity_between_speakers_is_computed_for_each_clip() -> None:
    found = by_hand().between_speakers()
    # a's clips to b: -1, 0, -√½; b's clip to a's mean direction (45°): -√½
    assert found == pytest.approx([-1.0, 0.0, -(2**-0.5), -(2**-0.5)], abs=1e-6)
    assert SpeakerClipVectors({"a": {A1: vector(1, 0)}}, False).between_speakers() == []


def test_statistics_are_standardized() -> None:
    far = SpeakerClipVectors({"a": {A1: vector(100, 0.1)}, "b": {B1: vector(102, 0.2)}}, standardized=True)
    assert far.similarity(vector(100, 0.1), "b") == pytest.approx(-1.0), "without standardization, all cosines would be nearly 1"


def test_a_scale_with_equal_ends_has_no_positions() -> None:
    assert speaker_similarity.scale_position(0.5, 0.25, 0.75) == pytest.approx(0.5)
    assert speaker_similarity.scale_position(0.5, 0.8, 0.8) is None


@pytest.mark.parametrize("kind", ["mfcc", "own", "independent"])
def test_swapped_speakers_lower_the_similarity(kind: str, nano: Path, tiny_speaker_model: Path) -> None:
    encoder = {
        "mfcc": speaker_similarity.mfcc_encoder,
        "own": lambda: speaker_similarity.load_own_encoder(open_speaker_encoder(str(nano), "--base")),
        "independent": lambda: speaker_similarity.load_independent_encoder(str(tiny_speaker_model)),
    }[kind]()
    clips = {name: {Path(f"{name}{seconds}"): made.voice(*sound, seconds) for seconds in (0.8, 1.0)} for name, sound in VOICES.items()}
    vectors = {name: {path: speaker_similarity.embed(encoder, wave) for path, wave in own.items()} for name, own in clips.items()}
    voices = speaker_similarity.group_vectors(encoder, vectors)  # type: ignore[arg-type]
    spoken = speaker_similarity.embed(encoder, made.voice(*VOICES["low"], 1.2))
    assert spoken is not None
    right, swapped = voices.similarity(spoken, "low"), voices.similarity(spoken, "high")
    assert right is not None and swapped is not None
    assert 1 - right < (1 - swapped) / 3, "even with random weights, whose cosines are all high"


def test_a_published_speaker_model_without_safetensors_gives_the_same_vectors(tiny_speaker_model: Path, tmp_path: Path) -> None:
    """Like microsoft/wavlm-base-plus-sv: one pickle, in which weights have the names from before torch had parametrizations."""
    folder = shutil.copytree(tiny_speaker_model, tmp_path / "published")
    old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    weights = load_file(folder / "model.safetensors")
    for new, name in old.items():
        weights = {key.replace(new, name): value for key, value in weights.items()}
    assert any(key.endswith("weight_g") for key in weights)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    wave = made.voice(*VOICES["low"], 1.0)
    first, second = (speaker_similarity.load_independent_encoder(str(each)).vector(wave) for each in (tiny_speaker_model, folder))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-12)


def test_statistics_separate_two_speakers_in_different_recordings() -> None:
    encoder = speaker_similarity.mfcc_encoder()
    vectors = {name: [speaker_similarity.embed(encoder, cut(path)) for path in RECORDINGS[name]] for name in RECORDINGS}
    voices = speaker_similarity.group_vectors(
        encoder, {name: {Path(f"{name}{at}"): one for at, one in enumerate(own) if one is not None} for name, own in vectors.items()}
    )
    for speaker, other in (("rms", "slt"), ("slt", "rms")):
        for at, vector in enumerate(vectors[speaker]):
            assert vector is not None
            own = voices.similarity(vector, speaker, frozenset({Path(f"{speaker}{at}")}))
            stranger = voices.similarity(vector, other)
            assert own is not None and stranger is not None and own > stranger + 0.2


SAMPLE = demo_models.data_folder() / "sample"
RECORDINGS = {
    "rms": [(SAMPLE / "rms" / "railway.ogg", 1.0), (SAMPLE / "rms" / "workshop.wav", 1.0), (SAMPLE / "rms" / "railway.ogg", 9.0)],
    "slt": [(SAMPLE / "slt" / "harbour.flac", 1.0), (SAMPLE / "slt" / "kitchen.mp3", 1.0), (SAMPLE / "slt" / "harbour.flac", 9.0)],
}


def cut(place: tuple[Path, float]) -> np.ndarray:
    """Four seconds of a recording, at 24 kHz."""
    path, start = place
    rate = soundfile.info(path).samplerate
    samples, _ = soundfile.read(path, start=round(start * rate), frames=4 * rate, dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(axis=1), rate, 24_000)


VOICES = {"low": (110.0, 0.9), "high": (233.0, 0.5)}


def test_a_model_that_is_no_speaker_encoder_is_refused(nano: Path, tmp_path: Path) -> None:
    for name in (str(tmp_path), str(nano)):
        with pytest.raises(UserError, match="not a speaker verification model of transformers"):
            speaker_similarity.load_independent_encoder(name)


def test_short_and_silent_clips_have_no_vector() -> None:
    encoder = speaker_similarity.mfcc_encoder()
    assert speaker_similarity.embed(encoder, np.ones(1000, np.float32)) is None
    assert speaker_similarity.embed(encoder, np.zeros(24_000, np.float32)) is None


def test_damaged_weights_are_an_error() -> None:
    broken = speaker_similarity.SimilarityEncoder("broken", lambda _: vector(np.nan, 1.0))
    with pytest.raises(UserError, match="its weights are damaged"):
        speaker_similarity.embed(broken, np.ones(24_000, np.float32))


def test_the_spectral_vector_does_not_depend_on_the_volume() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    np.testing.assert_allclose(speaker_similarity.mfcc_statistics(noise / 4), speaker_similarity.mfcc_statistics(noise), atol=1e-2)
