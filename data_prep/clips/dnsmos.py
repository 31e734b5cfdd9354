"""Sound quality of clips by DNSMOS, a network that predicts how listeners rate speech (https://arxiv.org/abs/2110.01763).

The networks are ONNX files inside the package speechmos; its code, which needs pandas and requests, is not imported. Features and
calibration are those of that package, but a clip gets as few windows as cover it, not one per second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import SPEECH_RATE, Samples, read_audio
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

NAME = "speechmos"
INSTALL = "pip install --no-deps speechmos==0.0.1.1 && pip install onnxruntime"
"""The command that installs the networks. Without `--no-deps`, pip would install pandas, which only the package's own code needs."""
RATINGS, OVERALL = "speechmos/dnsmos_models/sig_bak_ovr.onnx", "speechmos/dnsmos_models/model_v8.onnx"
WINDOW = int(9.01 * SPEECH_RATE)
CALIBRATION = {
    "mos_speech": (-0.08397278, 1.22083953, 0.0052439),
    "mos_background": (-0.13166888, 1.60915514, -0.39604546),
    "mos_overall": (-0.06766283, 1.11546468, 0.04602535),
}
"""Polynomials, highest power first, from the network's outputs to ratings: those of the package."""
FRAME, HOP, BANDS = 321, 160, 120
"""Frame, hop and bands of the mel spectrogram of P.808."""


class SoundRatings(BaseModel):
    """Predicted mean opinion scores, from 1 to 5."""

    model_config = ConfigDict(frozen=True)

    mos_speech: float
    """DNSMOS P.835 SIG."""
    mos_background: float
    """DNSMOS P.835 BAK."""
    mos_overall: float
    """DNSMOS P.835 OVRL."""
    mos_p808: float


@dataclass(frozen=True)
class SoundScorer:
    """The files of an installed package."""

    ratings: Path
    overall: Path

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{files.digest(self.ratings)} {files.digest(self.overall)}".encode()).hexdigest()

    def load(self) -> LoadedSoundScorer:
        """Read the networks, for one thread on the CPU. Raises `UserError` if they cannot be read."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            sessions = [
                onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                for path in (self.ratings, self.overall)
            ]
        except Exception as error:  # onnxruntime's errors have no common base class
            raise UserError(f"{self.ratings.parent}: not the networks of {NAME} ({error}); install it again: {INSTALL}") from error
        return LoadedSoundScorer(*sessions)


@dataclass(frozen=True)
class LoadedSoundScorer:
    """The networks, ready to run."""

    ratings: Any
    overall: Any

    def rate(self, samples: Samples) -> SoundRatings:
        """Return the ratings of samples [n] at 16 kHz, full scale 1.0: means over the windows of a clip longer than 9 s.

        Raises ValueError without samples.
        """
        found = np.mean([self._rate_window(window) for window in cut_windows(samples)], axis=0)
        return SoundRatings(**{name: round(float(value), 3) for name, value in zip([*CALIBRATION, "mos_p808"], found, strict=True)})

    def _rate_window(self, window: Samples) -> list[float]:
        raw = self.ratings.run(None, {"input_1": window[None]})[0][0]
        calibrated = [float(np.polyval(curve, value)) for curve, value in zip(CALIBRATION.values(), raw, strict=True)]
        spectrogram = compute_spectrogram(window[:-HOP])[None]
        return [*calibrated, float(self.overall.run(None, {"input_1": spectrogram})[0][0][0])]


def find_scorer() -> SoundScorer | None:
    """Return the scorer of the installed package; None if it, or onnxruntime, is not installed."""
    try:
        package = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None
    scorer = SoundScorer(Path(str(package.locate_file(RATINGS))), Path(str(package.locate_file(OVERALL))))
    return scorer if scorer.ratings.is_file() and scorer.overall.is_file() and find_spec("onnxruntime") else None


def rate_clips(scorer: LoadedSoundScorer, clips: Mapping[str, Path]) -> dict[str, SoundRatings]:
    """Return id → ratings of each clip file."""
    return {identity: scorer.rate(read_audio(path, SPEECH_RATE).samples) for identity, path in clips.items()}


def cut_windows(samples: Samples) -> list[Samples]:
    """Return the windows of 9.01 s that cover the clip evenly. A shorter clip is repeated until it is long enough, as the networks' authors
    do."""
    if not len(samples):
        raise ValueError("no samples")
    samples = samples.astype(np.float32)
    if len(samples) <= WINDOW:
        return [np.resize(samples, WINDOW)]
    starts = np.linspace(0, len(samples) - WINDOW, -(-len(samples) // WINDOW)).round().astype(int)
    return [samples[start : start + WINDOW] for start in starts]


def compute_spectrogram(samples: Samples) -> NDArray[np.float32]:
    """Return the log-mel spectrogram [frames, 120] of samples [n] at 16 kHz, relative to its maximum, as the network for P.808 takes it."""
    librosa = import_librosa()
    power = librosa.feature.melspectrogram(y=samples, sr=SPEECH_RATE, n_fft=FRAME, hop_length=HOP, n_mels=BANDS)
    levels: NDArray[np.float32] = ((librosa.power_to_db(power, ref=np.max) + 40) / 40).T.astype(np.float32)
    return levels
