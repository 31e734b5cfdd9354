"""Batched greedy transcription of clips of up to 30 s, with an exported folder, by openai-whisper's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.transcription import whisper_engine

from ..model.sequence_layout import FRAMES, SECONDS, pad_features

BATCH = 16
"""Clips that are decoded together."""
OPTION = "--model"
"""Option that messages name."""


@dataclass(frozen=True)
class Clip:
    """A clip to transcribe."""

    features: Tensor
    """[mels, frames], as `compute_features` returns them."""
    language: str
    """Whisper's code."""
    task: str


def load_model(folder: Path) -> Any:
    """The openai-whisper model of an exported folder in the format of transformers, on a GPU if there is one. Raises `UserError`."""
    return whisper_engine.load_whisper(str(folder), choose_device(None), OPTION)


def transcribe_clips(model: Any, clips: Sequence[Clip]) -> list[str]:
    """The text of each clip, without times. The length of a clip limits that of its text, since a model in training may repeat itself."""
    import whisper

    texts = [""] * len(clips)
    on_gpu = model.device.type == "cuda"
    for language, task in sorted({(clip.language, clip.task) for clip in clips}):
        chosen = [number for number, clip in enumerate(clips) if (clip.language, clip.task) == (language, task)]
        for first in range(0, len(chosen), BATCH):
            part = chosen[first : first + BATCH]
            seconds = max(clips[number].features.shape[1] for number in part) / FRAMES * SECONDS
            options = whisper.DecodingOptions(
                language=language,
                task=task,
                temperature=0.0,
                without_timestamps=True,
                sample_len=whisper_engine.compute_token_limit(model, seconds),
                fp16=on_gpu,
            )
            mels = torch.stack([pad_features(clips[number].features) for number in part]).to(model.device)
            for number, result in zip(part, whisper.decode(model, mels, options), strict=True):
                texts[number] = result.text.strip()
    return texts
