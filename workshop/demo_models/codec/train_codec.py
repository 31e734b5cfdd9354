"""Train the demo codec: a small Qwen3-TTS 12 Hz tokenizer for the voices of the corpus.

    python -m workshop.demo_models.codec.train_codec [FOLDER] [--corpus runs/studio/corpus] [--wave-steps 8000]

Four parts, each a plain supervised problem: codebooks by k-means; the encoder by regression; the front of the decoder by regression; the
decoder by distances between spectra. FOLDER (default runs/studio/codec) has the weights of each part; the same command resumes an
interrupted training, with the same result. As soon as codebooks and encoder are finished, FOLDER/coder can encode clips (`overtone codes
--model`); `pack_codec` makes a model that can decode, too. All in fp32: bf16 convolutions with few channels give wrong results on some
CPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file, save

from overtone.data_prep.audio_codecs.qwen3_tts_codec import load_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from workshop.demo_models.codec import codebooks, codec_model, decoder_training, encoder_training
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.decoder_training import EncodedClip
from workshop.demo_models.codec.training_clips import CodecClip, draw_gains, make_clip
from workshop.demo_models.corpus.grammar import Split
from workshop.demo_models.corpus.make_corpus import FOLDER as CORPUS
from workshop.demo_models.corpus.make_corpus import read_corpus, select_first, take_first

FOLDER = Path("runs/studio/codec")
PER_VOICE, HELD_OUT = 500, 8
"""Clips per voice: half an hour for training, half a minute for measuring."""
CODEBOOK_CLIPS = 150
"""Clips per voice from which the codebooks are made: the first of those for training."""
ENCODER_STEPS, FRONT_STEPS, WAVE_STEPS = 11_500, 6000, 8000
VERSIONS = 2
"""Versions of each clip for the decoder: at its own level, and at a random one."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="train_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument(
        "--wave-steps", type=int, default=WAVE_STEPS, help="steps of the last part, which takes most of the time (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.wave_steps < 1:
        raise UserError(f"--wave-steps {options.wave_steps}: must be at least 1")
    train = load_clips(options.corpus, "train", PER_VOICE)
    model, books, coded = train_encoder_side(options.folder, train, load_clips(options.corpus, "held_out", HELD_OUT), options.seed)
    decoder_training.train_front(model, coded, options.folder / "front", options.seed + 2, FRONT_STEPS)
    decoder_training.train_wave(model, books, coded, options.folder / "wave", options.seed + 3, options.wave_steps)
    print_line(f"next: python -m workshop.demo_models.codec.pack_codec {options.folder}")
    return 0


def train_encoder_side(
    folder: Path, train: Sequence[CodecClip], held_out: Sequence[CodecClip], seed: int
) -> tuple[Any, Codebooks, list[EncodedClip]]:
    """The model with final codebooks and encoder and an initialized decoder, the codebooks, and the codes of the training clips."""
    vectors = collect_vectors(take_first(train, lambda clip: clip.voice, CODEBOOK_CLIPS), seed)
    path = folder / "books.safetensors"
    if not path.is_file():
        codebooks.save(codebooks.fit_codebooks(torch.cat(vectors), seed), path)
    books = codebooks.load(path)
    model = codec_model.build_model(seed)
    encoder_training.train_encoder(model, train, books, folder / "encoder", seed + 1, ENCODER_STEPS)
    codec_model.round_to_fp16(model.encoder)
    codec_model.fill_codebooks(model, books)
    decoder_training.initialize_decoder(model, books.project(vectors[0]).std(0), seed)
    if not (folder / "coder").exists():
        found = encoder_training.measure_error(model, held_out, books)
        files.write_json(folder / "encoder.json", found)
        print_line(f"relative squared error on held-out clips: {found}")
        codec_model.write_folder(model, folder / "coder" / TOKENIZER)
    return model, books, encode_clips(folder, train, seed)


def collect_vectors(clips: Sequence[CodecClip], seed: int) -> list[torch.Tensor]:
    """The features [frames, features] from which the codebooks are made: of the clips at their own level, and at random ones."""
    levels = [[1.0] * len(clips), draw_gains(clips, seed, 1)]
    return [torch.cat([clip.features.vectors(gain) for clip, gain in zip(clips, gains, strict=True)]) for gains in levels]


def encode_clips(folder: Path, clips: Sequence[CodecClip], seed: int) -> list[EncodedClip]:
    """All versions of all clips, with codes from the model as the stock loader loads it."""
    path = folder / "codes.safetensors"
    levels = [(clip, gain) for version in range(VERSIONS) for clip, gain in zip(clips, draw_gains(clips, seed, version), strict=True)]
    if not path.is_file():
        tokenizer = load_codec(folder / "coder" / TOKENIZER, "cpu")
        found = [tokenizer.encode(clip.wave * np.float32(gain), sr=24000).audio_codes[0] for clip, gain in levels]
        files.write_bytes(path, save({"codes": torch.cat(found).to(torch.int16)}))
    codes = load_file(path)["codes"].long().split([clip.frames for clip, _ in levels])
    return [EncodedClip(clip, gain, some) for (clip, gain), some in zip(levels, codes, strict=True)]


def load_clips(corpus: Path, split: Split, per_voice: int) -> list[CodecClip]:
    """The first clips of every voice, including the new one: the codec knows it from other sentences, as real codecs know most voices."""
    rows = select_first(read_corpus(corpus), split, per_voice)
    return [make_clip(soundfile.read(corpus / row["audio"], dtype="float32")[0], row["text"], row["speaker"]) for row in rows]


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
