"""The speaker encoder of the package resemblyzer, from its weights alone: no code of that package is imported.

The model is a GE2E encoder (Wan et al. 2018, https://arxiv.org/abs/1710.10467): an LSTM of three layers over the mel spectrogram of 1.6 s,
a linear layer, ReLU and L2 normalization; the vector of a clip is the normalized mean over overlapping windows. The weights are a file of
16 MB inside the wheel, so a machine without a model hub can install them with pip.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.silent_frames import find_silent_frames
from overtone.data_prep.audio.waveform import SPEECH_RATE, Samples
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import load_pickled_weights

if TYPE_CHECKING:
    from torch import nn

NAME = "resemblyzer"
INSTALL = "pip install --no-deps resemblyzer==0.1.4"
"""The command that installs the weights. Without `--no-deps`, pip would compile webrtcvad, which only the package's own code needs."""
WEIGHTS = "resemblyzer/pretrained.pt"
SIZE, LAYERS, BANDS = 256, 3, 40
"""Size of the vector and the LSTM's state; layers of the LSTM; bands of the mel spectrogram."""
FRAME, HOP = SPEECH_RATE * 25 // 1000, SPEECH_RATE * 10 // 1000
WINDOW = 160
"""Frames of a window: 1.6 s."""
WINDOW_STEP = round(SPEECH_RATE / 1.3 / HOP)
"""Frames between two windows: 1.3 windows per second."""
LEAST_COVERAGE = 0.75
"""Minimum share of the last window that the clip must cover; otherwise that window is dropped."""
LEAST_RMS = 10 ** (-30 / 20)
"""Minimum RMS of a clip. Quieter ones are amplified to this level; the spectrogram is not logarithmic, so the encoder depends on the
volume."""
PAUSE_FRAMES = 10
"""Longest silence that is kept, in frames of 20 ms: a window of silence has a vector of no speaker."""
SHORTEST_SECONDS = 0.6
"""Shorter clips fill less than 40 % of a window; their vectors hardly identify the speaker."""

Vector = NDArray[np.float32]


def find_weights() -> Path | None:
    """Return the weights file of the installed package; None if the package is not installed."""
    try:
        path = Path(str(metadata.distribution(NAME).locate_file(WEIGHTS)))
    except metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


@dataclass(frozen=True)
class ResemblyzerEncoder:
    """Implements `SpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    weights: Path
    sample_rate: ClassVar[int] = SPEECH_RATE

    @property
    def digest(self) -> str:
        return files.digest(self.weights)

    def load(self, device: str = "cpu") -> GeneralizedEndToEndEncoder:  # noqa: ARG002 - the network is too small for a GPU to help
        return GeneralizedEndToEndEncoder(self.weights)


class GeneralizedEndToEndEncoder:
    """The encoder with loaded weights. Implements `LoadedSpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    sample_rate: ClassVar[int] = SPEECH_RATE
    dimensions: ClassVar[int] = SIZE

    @property
    def shortest_seconds(self) -> float:
        return SHORTEST_SECONDS

    def __init__(self, weights: Path) -> None:
        """Raises `UserError` for a file that does not contain this model's weights."""
        self._layers = load_layers(weights)

    def embed(self, clip: Samples) -> Vector:
        """Return the speaker vector [256] of length 1, of samples [n] at 16 kHz."""
        return self.embed_prepared(shorten_pauses(raise_volume(clip)))

    def embed_prepared(self, speech: Samples) -> Vector:
        """Return the speaker vector [256] of samples [n] at 16 kHz, whose volume and pauses stay as they are."""
        import torch

        windows = torch.from_numpy(cut_windows(speech))
        with torch.inference_mode():
            _, (hidden, _) = self._layers["lstm"](windows)
            vectors = torch.relu(self._layers["linear"](hidden[-1]))
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
            mean = vectors.mean(dim=0)
            return (mean / mean.norm()).numpy().copy()


def load_layers(weights: Path) -> nn.ModuleDict:
    """Load the LSTM and the linear layer with the weights of a file. Raises `UserError` for other weights."""
    import torch
    from torch import nn

    layers = nn.ModuleDict({"lstm": nn.LSTM(BANDS, SIZE, LAYERS, batch_first=True), "linear": nn.Linear(SIZE, SIZE)})
    found = load_pickled_weights(weights).get("model_state")
    tensors = {name: found.get(name) if isinstance(found, dict) else None for name in layers.state_dict()}
    for name, expected in layers.state_dict().items():
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor) or tensor.shape != expected.shape:
            raise UserError(f"{weights}: no {name} of shape {list(expected.shape)} in it; install the package again: {INSTALL}")
    layers.load_state_dict(tensors)
    return layers.eval()


def cut_windows(speech: Samples) -> NDArray[np.float32]:
    """Return the mel spectrograms [windows, 160, 40] of overlapping windows of samples [n] at 16 kHz, padded with zeros to the end of the
    last one."""
    frames = -(-(len(speech) + 1) // HOP)
    starts = list(range(0, max(1, frames - WINDOW + WINDOW_STEP + 1), WINDOW_STEP))
    if len(starts) > 1 and (len(speech) / HOP - starts[-1]) / WINDOW < LEAST_COVERAGE:
        starts.pop()
    padded = np.pad(speech, (0, max(0, (starts[-1] + WINDOW) * HOP - len(speech))))
    spectrogram = import_librosa().feature.melspectrogram(y=padded, sr=SPEECH_RATE, n_fft=FRAME, hop_length=HOP, n_mels=BANDS)
    return np.stack([spectrogram[:, start : start + WINDOW].T for start in starts]).astype(np.float32)


def raise_volume(speech: Samples) -> Samples:
    """Return the samples [n] with an RMS of at least -30 dBFS; digital silence stays silent."""
    rms = float(np.sqrt(np.mean(np.square(speech, dtype=np.float64))))
    return speech * np.float32(LEAST_RMS / rms) if 0 < rms < LEAST_RMS else speech


def shorten_pauses(speech: Samples) -> Samples:
    """Return the samples at 16 kHz in which no silence is longer than 0.2 s."""
    silent = find_silent_frames(speech, SPEECH_RATE)
    run, keep = 0, np.ones(len(silent), bool)
    for at, quiet in enumerate(silent):
        run = run + 1 if quiet else 0
        keep[at] = run <= PAUSE_FRAMES
    return speech[np.repeat(keep, SPEECH_RATE // 50)[: len(speech)]]
