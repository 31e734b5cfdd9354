"""Windows and features of the predicted ratings, and the values of the package's own code."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.clips import dnsmos
from overtone.data_prep.clips.dnsmos import WINDOW, compute_spectrogram, cut_windows, find_scorer
from tests.data_prep.speakers.test_resemblyzer_encoder import generate_voice

OF_ITS_OWN_CODE = {"mos_overall": 1.8139, "mos_speech": 2.2710, "mos_background": 1.9428, "mos_p808": 2.4996}
"""`speechmos.dnsmos.run(generate_voice(9.01), 16000)` by speechmos 0.0.1.1 with onnxruntime 1.31 and librosa 0.11."""


def test_the_ratings_are_those_of_the_packages_own_code() -> None:
    scorer = find_scorer()
    if scorer is None:
        pytest.skip("needs speechmos: " + dnsmos.INSTALL)
    ratings = scorer.load().rate(generate_voice(9.5)[:WINDOW]).model_dump()
    assert {name: pytest.approx(ratings[name], abs=2e-3) for name in OF_ITS_OWN_CODE} == OF_ITS_OWN_CODE


@pytest.mark.parametrize(("length", "windows"), [(8000, 1), (WINDOW, 1), (WINDOW + 1, 2), (2 * WINDOW, 2), (20 * 16_000, 3)])
def test_windows_cover_a_clip_evenly(length: int, windows: int) -> None:
    clip = np.arange(length, dtype=np.float32)
    found = cut_windows(clip)
    assert [len(window) for window in found] == [WINDOW] * windows
    assert found[0][0] == 0 and found[-1].max() == length - 1
    assert windows > 1 or found[0][length % WINDOW] == (0 if length < WINDOW else found[0][0])


def test_an_empty_clip_has_no_rating() -> None:
    with pytest.raises(ValueError, match="no samples"):
        cut_windows(np.zeros(0, np.float32))


def test_features_are_relative_to_the_loudest() -> None:
    spectrogram = compute_spectrogram(generate_voice(9.01)[: WINDOW - 160])
    assert spectrogram.shape == (900, 120) and spectrogram.max() == pytest.approx(1.0) and spectrogram.min() >= -1.0
    np.testing.assert_allclose(spectrogram, compute_spectrogram(generate_voice(9.01)[: WINDOW - 160] / 8), atol=1e-4)


def test_without_the_package_there_is_no_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnsmos, "NAME", "no-such-package")
    assert find_scorer() is None
