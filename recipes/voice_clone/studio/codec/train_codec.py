"""Train the demo codec: a small Qwen3-TTS 12 Hz tokenizer that knows the studio's voices.

    python -m recipes.voice_clone.studio.codec.train_codec [FOLDER] [--corpus runs/studio/corpus] [--wave-steps 8000]

Four parts, each a plain supervised problem: codebooks by k-means; the encoder by regression; the decoder's front by regression; the
decoder by distances between spectra. FOLDER (default runs/studio/codec) keeps the weights of each part: the same command goes on where it
was stopped, and the result is the same. When codebooks and encoder are done, FOLDER/coder can make codes (`data_prep codes --model`);
`pack_codec` makes of it what can decode them too. All in fp32: bf16 convolutions with few channels are wrong on some CPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio_codecs.qwen3_tts import load_codec
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from finetune.errors import UserError, exit_code
from finetune.storage import files
from recipes.voice_clone.studio.codec import codebooks, codec_model, decoder, encoder
from recipes.voice_clone.studio.codec.decoder import Coded
from recipes.voice_clone.studio.codec.training_clips import Clip, gains, make_clip
from recipes.voice_clone.studio.corpus.grammar import Split
from recipes.voice_clone.studio.corpus.make_corpus import FOLDER as CORPUS
from recipes.voice_clone.studio.corpus.make_corpus import first_of_each, lines_of

FOLDER = Path("runs/studio/codec")
PER_VOICE, HELD_OUT = 150, 8
"""Clips: 8 minutes of each voice to learn from, half a minute to measure on."""
ENCODER_STEPS, FRONT_STEPS, WAVE_STEPS = 2500, 6000, 8000
VERSIONS = 2
"""Of each clip for the decoder: at its own level, and at a random one."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="train_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--wave-steps", type=int, default=WAVE_STEPS, help="of the last part, which takes the time (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.wave_steps < 1:
        raise UserError(f"--wave-steps {options.wave_steps}: at least 1")
    train = clips_of(options.corpus, "train", PER_VOICE)
    model, coded = encoder_side(options.folder, train, clips_of(options.corpus, "held_out", HELD_OUT), options.seed)
    decoder.teach_front(model, coded, options.folder / "front", options.seed + 2, FRONT_STEPS)
    decoder.teach_wave(model, coded, options.folder / "wave", options.seed + 3, options.wave_steps)
    print(f"next: python -m recipes.voice_clone.studio.codec.pack_codec {options.folder}")
    return 0


def encoder_side(folder: Path, train: Sequence[Clip], held_out: Sequence[Clip], seed: int) -> tuple[Any, list[Coded]]:
    """The model with codebooks and encoder as they will be for good and a decoder ready to be taught, and its codes of the clips."""
    import torch

    vectors = [torch.cat([clip.heard.vectors(1.0) for clip in train])]
    vectors.append(torch.cat([clip.heard.vectors(gain) for clip, gain in zip(train, gains(train, seed, 1), strict=True)]))
    place = folder / "books.safetensors"
    if not place.is_file():
        codebooks.save(codebooks.make_books(torch.cat(vectors), seed), place)
    books = codebooks.load(place)
    model = codec_model.build(seed)
    encoder.teach(model, train, books, folder / "encoder", seed + 1, ENCODER_STEPS)
    codec_model.round_to_half(model.encoder)
    codec_model.fill_books(model, books)
    decoder.prepare(model, books.coordinates(vectors[0]).std(0), seed)
    if not (folder / "coder").exists():
        found = encoder.error(model, held_out, books)
        files.write_json(folder / "encoder.json", found)
        print(f"relative squared error on held-out clips: {found}", flush=True)
        codec_model.write_folder(model, folder / "coder" / TOKENIZER)
    return model, coded_clips(folder, train, seed)


def coded_clips(folder: Path, clips: Sequence[Clip], seed: int) -> list[Coded]:
    """Every version of every clip with the codes that the stock loader's model gives."""
    import torch
    from safetensors.torch import load_file, save

    place = folder / "codes.safetensors"
    levels = [(clip, gain) for version in range(VERSIONS) for clip, gain in zip(clips, gains(clips, seed, version), strict=True)]
    if not place.is_file():
        tokenizer = load_codec(folder / "coder" / TOKENIZER, "cpu")
        found = [tokenizer.encode(clip.wave * np.float32(gain), sr=24000).audio_codes[0] for clip, gain in levels]
        files.write_bytes(place, save({"codes": torch.cat(found).to(torch.int16)}))
    codes = load_file(place)["codes"].long().split([clip.frames for clip, _ in levels])
    return [Coded(clip, gain, some) for (clip, gain), some in zip(levels, codes, strict=True)]


def clips_of(corpus: Path, split: Split, per_voice: int) -> list[Clip]:
    """The first clips of every voice, the new one included: the codec knows it from other sentences, as real codecs know most voices."""
    import soundfile

    rows = first_of_each(lines_of(corpus), split, per_voice)
    return [make_clip(soundfile.read(corpus / row["audio"], dtype="float32")[0], row["text"], row["speaker"]) for row in rows]


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
