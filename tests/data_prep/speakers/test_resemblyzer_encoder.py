"""The encoder of resemblyzer gives the vectors of that package's own code, and other files are refused.

The tests of the real weights need the package, which `make` installs into `.venv/similarity`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from overtone.data_prep.audio.waveform import SPEECH_RATE
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.resemblyzer_encoder import GeneralizedEndToEndEncoder, find_weights
from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation import speaker_similarity
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.voice_clone.demo.pipeline import find_new_voice

OF_ITS_OWN_CODE = {
    **{180: 0.2015, 42: 0.1969, 1: 0.1803, 215: 0.1668, 127: 0.1575, 203: 0.1565},
    **{125: 0.1547, 191: 0.1514, 162: 0.1507, 132: 0.149, 48: 0.1454, 124: 0.1416},
}
"""The twelve largest elements of `VoiceEncoder.embed_utterance(generate_voice(3.7))` by resemblyzer 0.1.4 with librosa 0.11."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """`make` installs the package beside the environment, because its dependencies are not installed."""
    place = str(Path(sys.prefix) / "similarity")
    sys.path.append(place)
    yield
    sys.path.remove(place)


@pytest.fixture
def weights() -> Path:
    found = find_weights()
    if found is None:
        pytest.skip("needs resemblyzer: make, or " + resemblyzer_encoder.INSTALL)
    return found


@pytest.fixture
def small_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of that name with random weights, and with code that must never run; returns the weights file."""
    package, record = tmp_path / "resemblyzer", tmp_path / "resemblyzer-9.9.dist-info"
    package.mkdir()
    record.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: Resemblyzer\nVersion: 9.9\n")
    torch.manual_seed(0)
    parts = {"lstm": torch.nn.LSTM(40, 256, 3), "linear": torch.nn.Linear(256, 256)}
    state = {f"{part}.{name}": value for part, layer in parts.items() for name, value in layer.state_dict().items()}
    torch.save({"step": 1, "model_state": {**state, "similarity_weight": torch.ones(1)}}, package / "pretrained.pt")
    monkeypatch.syspath_prepend(tmp_path)
    return package / "pretrained.pt"


def generate_voice(seconds: float) -> np.ndarray:
    """A voice of 23 harmonics at 16 kHz, whose pitch and formants move."""
    time = np.arange(round(SPEECH_RATE * seconds)) / SPEECH_RATE
    phase = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 2.5 * time)) / SPEECH_RATE
    wave = sum(np.sin(k * phase) / k**1.2 * (1 + 0.6 * np.sin(2 * np.pi * (0.7 + 0.3 * k) * time)) for k in range(1, 24))
    return (0.1 * wave / np.abs(wave).max()).astype(np.float32)


def test_the_vectors_are_those_of_the_packages_own_code(weights: Path) -> None:
    vector = GeneralizedEndToEndEncoder(weights).embed_prepared(generate_voice(3.7))
    assert {at: pytest.approx(float(vector[at]), abs=2e-4) for at in OF_ITS_OWN_CODE} == OF_ITS_OWN_CODE
    assert np.argsort(-vector)[:12].tolist() == list(OF_ITS_OWN_CODE) and (vector > 0).sum() == 174


def test_recordings_of_a_speaker_are_more_similar_than_those_of_others(weights: Path) -> None:
    """Three voices built from recordings of people, with one speaker's similarity also where nobody else is in the data."""
    encoder = speaker_similarity.load_resemblyzer_encoder()
    vectors = {
        name: {path: encoder.vector(read_clip(path)) for path in sorted((find_new_voice() / "known" / name).iterdir())}
        for name in ("slt", "awb", "ked")
    }
    every = speaker_similarity.group_vectors(encoder, vectors)
    for name, own in vectors.items():
        alone = speaker_similarity.group_vectors(encoder, {name: own})
        for path, vector in own.items():
            same = alone.similarity(vector, name, frozenset({path}))
            assert same is not None and same > 0.7
            assert all((every.similarity(vector, other) or 0.0) < same - 0.05 for other in vectors.keys() - {name})


def test_no_code_of_the_package_runs(small_package: Path) -> None:
    assert find_weights() == small_package
    vector = speaker_similarity.load_independent_encoder("resemblyzer").vector(np.sin(np.arange(48_000) / 20).astype(np.float32))
    assert vector.shape == (256,) and float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-5) and "resemblyzer" not in sys.modules


def test_the_volume_of_quiet_speech_does_not_matter() -> None:
    voice = generate_voice(1.0)
    quiet, quieter = (resemblyzer_encoder.raise_volume(voice / part) for part in (30, 300))
    np.testing.assert_allclose(quiet, quieter, atol=1e-6)
    assert np.sqrt(np.mean(quiet**2)) == pytest.approx(10 ** (-30 / 20), rel=1e-4)
    loud = voice * 5
    assert resemblyzer_encoder.raise_volume(loud) is loud and not resemblyzer_encoder.raise_volume(voice * 0).any()


def test_other_weights_are_refused(small_package: Path) -> None:
    torch.save({"model_state": {"linear.weight": torch.ones(2, 2)}}, small_package)
    with pytest.raises(
        UserError, match=r"pretrained\.pt: no lstm\.weight_ih_l0 of shape \[1024, 40\] in it; install the package again: pip install"
    ):
        speaker_similarity.load_resemblyzer_encoder()


def test_without_the_package_the_error_has_the_command(small_package: Path) -> None:
    shutil.rmtree(small_package.parent)
    assert find_weights() is None
    with pytest.raises(UserError, match=r"run `pip install --no-deps resemblyzer==0\.1\.4`"):
        speaker_similarity.load_independent_encoder("resemblyzer")


@pytest.mark.parametrize(("seconds", "windows"), [(0.3, 1), (1.6, 1), (1.9, 1), (2.0, 2), (2.9, 3), (3.7, 4)])
def test_windows_cover_the_clip_and_a_nearly_empty_last_one_is_dropped(seconds: float, windows: int) -> None:
    assert resemblyzer_encoder.cut_windows(generate_voice(seconds)).shape == (windows, 160, 40)


def test_long_pauses_are_shortened() -> None:
    voice, pause = generate_voice(1.0), np.zeros(SPEECH_RATE, np.float32)
    assert len(resemblyzer_encoder.shorten_pauses(np.concatenate([voice, pause, voice]))) == pytest.approx(2.2 * SPEECH_RATE, abs=640)
    assert len(resemblyzer_encoder.shorten_pauses(voice)) == len(voice)
