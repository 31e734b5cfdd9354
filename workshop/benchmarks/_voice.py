"""A tiny Qwen3-TTS and random speech for it, as small as a measurement wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from overtone.finetune.config import Config, resolve
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.model.config_factory import CODEBOOKS, ModelSize, make_codec_config, make_model_config
from overtone.recipes.voice_clone.model import tiny_checkpoint
from overtone.recipes.voice_clone.recipe import RECIPE


def make(folder: Path, width: ModelSize, clips: int, frames: int) -> Path:
    """A base of these widths and `clips` rows of `frames` random frames each, in a folder of their own."""
    return make_clips(folder, width, [("She counted the boats.", frames)] * clips)


def make_clips(folder: Path, width: ModelSize, clips: Sequence[tuple[str, int]]) -> Path:
    """As `make`, but each clip has its own text and number of frames."""
    build(folder / "base", width)
    return write_clips(folder, width.codebook, clips)


def build(folder: Path, width: ModelSize, words: int | None = None) -> None:
    """A Qwen3-TTS of any widths with the tiny tokenizer, whose words the model may exceed, and a tiny codec."""
    tokenizer = tiny_checkpoint.train_text_tokenizer()
    ids = tiny_checkpoint.find_text_ids(tokenizer)
    shape, codec = make_model_config(width, ids if words is None else replace(ids, vocabulary=words)), make_codec_config(width.codebook)
    contents = {
        **tiny_checkpoint.make_tokenizer_files(tokenizer), **tiny_checkpoint.make_config_files(shape, codec),
        "model.safetensors": tiny_checkpoint.make_model_weights(shape, seed=0),
        "speech_tokenizer/model.safetensors": tiny_checkpoint.make_codec_weights(codec, seed=0),
    }  # fmt: skip
    for name, content in contents.items():
        files.write_bytes(folder / name, content)


def write_clips(folder: Path, codebook: int, clips: Sequence[tuple[str, int]]) -> Path:
    """Rows for a model whose codebooks have so many entries."""
    chance = np.random.RandomState(0)
    soundfile.write(folder / "voice.wav", 0.1 * chance.randn(24000), 24000)
    spoken = {"audio": "voice.wav", "speaker": "Ann", "language": "english"}
    codes = [chance.randint(0, codebook, (frames, CODEBOOKS)).tolist() for _, frames in clips]
    rows = ({**spoken, "text": text, "audio_codes": of_clip} for (text, _), of_clip in zip(clips, codes, strict=True))
    files.write_jsonl(folder / "train.jsonl", rows)
    return folder


def run_config(folder: Path, run: str, **train: object) -> Config:
    """The config of a run on what `make` left, fp32 at a constant rate; `train` overrides keys of that section."""
    given = {"model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / run}
    steady = {"train.precision": "fp32", "train.schedule": "constant", "train.warmup": 0, "train.lr": 1e-4}
    # The whole data is one micro-batch unless `train` says otherwise.
    whole = {"train.micro_tokens": 10**6, "train.global_batch_tokens": 10**6}
    chosen = given | steady | whole | {f"train.{key}": value for key, value in train.items()}
    return resolve("voice_clone", RECIPE.Options, [], [(key, str(value)) for key, value in chosen.items()])
