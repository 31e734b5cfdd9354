"""The English recognizer of Seed-TTS-eval: `generate` of transformers' Whisper, on at most 30 s, without any fallback.

The steps are those of `run_wer.py` of https://github.com/BytedanceSpeech/seed-tts-eval: soundfile reads the clip, `scipy.signal.resample`
(by FFT) brings it to 16 kHz, weights and arithmetic are float32, and decoding is greedy from the prompt of English transcription without
timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import SPEECH_RATE
from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.data_prep.transcription.whisper_conversion import KIND, WEIGHTS
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import admit, require_safetensors, require_weights
from overtone.finetune.storage.strict_json import first_line

PUBLISHED = "openai/whisper-large-v3"
"""The protocol's model for English."""
OPTION = "--protocol-asr"
PATTERNS = ("*.json", "merges.txt", *WEIGHTS)


@dataclass(frozen=True)
class RecognizerFolder:
    """A Whisper model that was found, and not loaded yet."""

    name: str
    folder: Path

    @property
    def revision(self) -> str | None:
        """Commit on the hub; None for a folder of the user."""
        return commit_of(self.folder)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file of weights."""
        return {path.name: files.digest(path) for path in sorted(self.folder.glob("model*.safetensors"))}

    def load(self) -> WhisperRecognizer:
        """Raises `UserError` for weights or a tokenizer that cannot be used."""
        import torch
        from transformers import WhisperForConditionalGeneration, WhisperProcessor

        try:
            with admit(self.folder, KIND) as clean:
                processor: Any = WhisperProcessor.from_pretrained(clean, trust_remote_code=False)
                model: Any
                model, loaded = WhisperForConditionalGeneration.from_pretrained(
                    clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True, torch_dtype=torch.float32
                )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            first = first_line(error)
            raise UserError(f"{OPTION} {self.name}: cannot be loaded ({first}); give a Whisper model with its tokenizer") from error
        require_weights(loaded["missing_keys"], ("proj_out.",))  # tied to the embedding
        return WhisperRecognizer(processor, model.eval().to(choose_device(None)))


@dataclass(frozen=True)
class WhisperRecognizer:
    """A loaded model with its processor."""

    processor: Any
    model: Any

    def transcribe(self, path: Path) -> str:
        """The transcript of a clip, as the tokenizer gives it: usually with a space in front."""
        import torch

        features = self.processor(read_resampled(path), sampling_rate=SPEECH_RATE, return_tensors="pt").input_features
        with torch.inference_mode(), disable_tf32():
            tokens = self.model.generate(features.float().to(self.model.device), language="en", task="transcribe", return_timestamps=False)
        return str(self.processor.batch_decode(tokens, skip_special_tokens=True)[0])


def find_recognizer(name: str) -> RecognizerFolder:
    """A Whisper model by its folder or its name on the hub. Raises `UserError`."""
    folder = resolve_model(OPTION, name, PATTERNS)
    require_safetensors(folder, OPTION)
    return RecognizerFolder(name, folder)


def read_resampled(path: Path) -> NDArray[np.float64]:
    """The samples [n] of a mono clip at 16 kHz, resampled in the frequency domain over the whole clip. Raises `UserError`."""
    from scipy import signal

    input_files.require_regular(path)
    wave, rate = soundfile.read(path)
    if wave.ndim != 1 or not len(wave):
        raise UserError(f"{path}: the protocol transcribes mono clips with sound; this one has the shape {wave.shape}")
    found: NDArray[np.float64] = wave if rate == SPEECH_RATE else signal.resample(wave, int(len(wave) * SPEECH_RATE / rate))
    return found
