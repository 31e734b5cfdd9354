"""Audio for these tests: synthetic sentences of two voices with codebooks and a model made from them, and sentences of noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tests.recipes.voice_clone.conftest import nano, two_voices
from workshop.demo_models.codec import codebooks, codec_model, training_clips
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.training_clips import CodecClip
from workshop.demo_models.corpus.grammar import generate_sentences, split_words
from workshop.demo_models.corpus.voices import RATE, VOICES

__all__ = ["nano", "two_voices"]

torch.set_num_threads(1)


def buzz(hz: float, seconds: float, seed: int = 0) -> np.ndarray:
    """A voice-like sound at 24 kHz: harmonics whose strengths wander, around a pitch that glides by a tenth."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(hz * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * time))) / RATE
    knots = np.linspace(0, seconds, 4 + int(4 * seconds))
    strengths = [np.interp(time, knots, random.uniform(0, 1, len(knots))) for _ in range(8)]
    wave = sum(strength * np.sin((k + 1) * phase) / (k + 1) for k, strength in enumerate(strengths))
    return (0.5 * wave / np.abs(wave).max()).astype(np.float32)


@pytest.fixture(scope="session")
def sound() -> Callable[..., np.ndarray]:
    return buzz


@pytest.fixture(scope="session")
def clips() -> list[CodecClip]:
    """24 s in all, two voices."""
    return [training_clips.make_clip(buzz((110, 190)[index % 2], 2.0, index), f"sentence {index}", "ab"[index % 2]) for index in range(12)]


@pytest.fixture(scope="session")
def books(clips: list[CodecClip]) -> Codebooks:
    random = np.random.default_rng(0)
    vectors = [clip.features.vectors(random.uniform(0.3, 1.2)) for _ in range(3) for clip in clips]
    return codebooks.fit_codebooks(torch.cat(vectors), seed=0)


@pytest.fixture(scope="session")
def model(books: Codebooks) -> object:
    """Untrained, with the codebooks; do not change its weights."""
    made = codec_model.build_model(seed=0)
    codec_model.round_to_fp16(made)
    codec_model.fill_codebooks(made, books)
    return made.eval()


@pytest.fixture(scope="session")
def noise_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that needs no synthesizer: two training sentences and one held-out sentence per voice, 0.8 s of noise each."""
    folder, random = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    texts = {"train": generate_sentences(0, "train"), "held_out": generate_sentences(0, "held_out")}
    rows = []
    for voice in VOICES:
        for split, count in (("train", 2), ("held_out", 1)):
            for number, text in enumerate(islice(texts[split], count)):
                path = folder / f"{voice.name}-{split}-{number}.flac"
                soundfile.write(path, 0.1 * random.standard_normal(int(0.8 * RATE)), RATE)
                row = {"audio": path.name, "text": text, "speaker": voice.name, "split": split, "speed": 1.0}
                rows.append({**row, "new_voice": voice is VOICES[-1]})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lexicon.json").write_text(json.dumps({word: list(word) for row in rows for word in split_words(row["text"])}))
    return folder
