"""Make the start of the demo base's training: an untrained checkpoint with a few million parameters, and the training data.

    python -m workshop.demo_models.base.prepare_base_training [FOLDER] [--corpus runs/studio/corpus]
        [--codec runs/studio/codec/coder]

Writes `start/` to FOLDER (default runs/studio/base): a Base model with the files of a released one, with a text tokenizer for the grammar,
talker and code predictor with random weights, a speaker encoder that distinguishes voices (`closed_form_speaker_encoder`), and the codec.
Writes `base-alone.jsonl` (single words), `base-train.jsonl` and `base-val.jsonl` to the corpus: all voices except the new one. README.md
describes the training that follows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import soundfile
from safetensors.torch import load_file, save

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.data_prep.audio_codecs.qwen3_tts_codec import find_codec, read_codebook_size
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.recipes.qwen3_tts.model.config_factory import ModelSize, make_model_config
from overtone.recipes.voice_clone.model import tiny_checkpoint
from workshop.demo_models.corpus import closed_form_speaker_encoder, grammar, make_corpus

FOLDER = Path("runs/studio/base")
CODEC = Path("runs/studio/codec/coder")
SIZE = ModelSize("demo", 256, 128, 256, 640, 6, 192, 512, 3, 4, 2, 64, 64, 32, 1024, spread=0.05)
VOCABULARY = 1200
"""Enough for one token per word of the grammar."""
TOKENIZER_SENTENCES = 3000
SENTENCES, VAL_SENTENCES = 2400, 8
"""Sentences per voice, or as many as it has. With 400, the model memorizes them: after four epochs it is almost certain of them, and fails
on others."""
FIT_CLIPS, TEST_CLIPS = 16, 8
"""Clips per voice: to fit the speaker encoder, and to measure it."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="prepare_base_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--codec", default=str(CODEC), help="name or folder (default %(default)s)")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="training sentences per voice (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: must be at least 1")
    known = [row for row in make_corpus.read_corpus(options.corpus) if not row["new_voice"]]
    write_rows(options.corpus / "base-alone.jsonl", [row for row in known if row["split"] == "alone"])
    write_rows(options.corpus / "base-train.jsonl", select_training_rows(known, options.sentences))
    write_rows(options.corpus / "base-val.jsonl", make_corpus.select_first(known, "held_out", VAL_SENTENCES))
    start = write_checkpoint(options.folder / "start", find_codec(options.codec), options.seed)
    figures = fit_speaker_encoder(start, options.corpus, options.seed)
    files.write_json(options.folder / "speaker_encoder.json", figures)
    print_line(json.dumps(figures, indent=1))
    return 0


def select_training_rows(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Per voice: `count` sentences and their share of `more`; a quarter as many of each resampled voice; and twice as many clips of random
    words, which cannot be spoken without reading the text."""
    return [
        *make_corpus.select_first(rows, "train", count),
        *make_corpus.select_first(rows, "more", round(make_corpus.MORE_SHARE * count)),
        *make_corpus.select_first(rows, "sizes", math.ceil(make_corpus.SIZED_SHARE * count)),
        *make_corpus.select_first(rows, "words", len(make_corpus.MAX_WORDS) * count),
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows for `overtone codes`."""
    kept = ("audio", "text", "speaker", "speed")
    files.write_jsonl(path, ({**{key: row[key] for key in kept}, "language": "english"} for row in rows))


def write_checkpoint(folder: Path, codec: Path, seed: int) -> Path:
    """Write the untrained checkpoint with the codec's files. Raises `UserError` if the folder exists."""
    if folder.exists():
        raise UserError(f"{folder} already exists; remove it or choose another folder")
    if read_codebook_size(codec) != SIZE.codebook:
        raise UserError(f"{codec} has {read_codebook_size(codec)} codes per codebook, expected {SIZE.codebook}; use the demo codec")
    sentences = grammar.generate_sentences(seed, "train")
    tokenizer = tiny_checkpoint.train_text_tokenizer([next(sentences) for _ in range(TOKENIZER_SENTENCES)], VOCABULARY)
    shape = make_model_config(SIZE, tiny_checkpoint.find_text_ids(tokenizer))
    settings = {name: data for name, data in tiny_checkpoint.make_config_files(shape, {}).items() if not name.startswith(TOKENIZER)}
    contents = {
        **tiny_checkpoint.make_tokenizer_files(tokenizer),
        **settings,
        "model.safetensors": tiny_checkpoint.make_model_weights(shape, seed),
    }
    temporary = files.fresh_folder(folder.parent, folder.name)
    for name, data in contents.items():
        files.write_in_place(temporary / name, data)
    for path in codec.iterdir():
        files.copy_into(path, temporary / TOKENIZER / path.name)
    files.commit_folder(temporary, folder)
    return folder


def fit_speaker_encoder(folder: Path, corpus: Path, seed: int) -> dict[str, Any]:
    """Replace the last layer of the checkpoint's speaker encoder. Returns cosines on held-out sentences before and after, including the new
    voice."""
    rows = list(make_corpus.read_corpus(corpus))
    held_out, encoder = (
        _read_clips(corpus, make_corpus.select_first(rows, "held_out", TEST_CLIPS)),
        qwen3_tts_speaker_encoder.load_encoder(folder),
    )
    before = closed_form_speaker_encoder.measure_cosines(encoder, held_out)
    clips = _read_clips(corpus, make_corpus.select_first([row for row in rows if not row["new_voice"]], "train", FIT_CLIPS))
    fitted = closed_form_speaker_encoder.fit_last_layer(encoder, clips, seed)
    weights = load_file(folder / "model.safetensors") | {
        f"{qwen3_tts_speaker_encoder.PREFIX}{name}": tensor for name, tensor in fitted.items()
    }
    files.write_bytes(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    return {
        "random": before,
        "fitted": closed_form_speaker_encoder.measure_cosines(qwen3_tts_speaker_encoder.load_encoder(folder), held_out),
    }


def _read_clips(corpus: Path, rows: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """(speaker, samples [n] at 24 kHz) of each row."""
    return [(row["speaker"], soundfile.read(corpus / row["audio"], dtype="float32")[0]) for row in rows]


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
