"""What the demo base is trained from: an untrained checkpoint of a few million parameters, and its data.

    python -m recipes.voice_clone.studio.base.make_base [FOLDER] [--corpus runs/studio/corpus] [--codec runs/studio/codec/coder]

FOLDER (default runs/studio/base) gets `start/`, a Base model in the released layout: text tokenizer of the grammar, talker and code
predictor with fresh weights, a speaker encoder that tells voices apart (`closed_form_speaker_encoder`), and the codec. The corpus gets
`base-alone.jsonl` (each word for itself), `base-train.jsonl` and `base-val.jsonl`: all voices but the new one. README.md
says how training continues with the recipe's own.
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

from data_prep.audio_codecs import qwen3_tts_speaker_encoder
from data_prep.audio_codecs.qwen3_tts import find_codec, read_codebook_size
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from finetune.errors import UserError, exit_code
from finetune.storage import files
from recipes.voice_clone.model import tiny_checkpoint
from recipes.voice_clone.model.model_configs import Width, model_shape
from recipes.voice_clone.studio.corpus import closed_form_speaker_encoder, grammar, make_corpus

FOLDER = Path("runs/studio/base")
CODEC = Path("runs/studio/codec/coder")
WIDTH = Width("demo", 256, 128, 256, 640, 6, 192, 512, 3, 4, 2, 64, 64, 32, 1024, spread=0.05)
VOCABULARY = 1200
"""Enough for a token for every word of the grammar."""
TOKENIZER_SENTENCES = 3000
SENTENCES, VAL_SENTENCES = 2400, 8
"""Of each voice, or as many as it has. With 400 the model learns them by heart: after four epochs it is near certain of them, and lost on
others."""
LEARNED, ASKED = 16, 8
"""Clips of each voice: to fit the speaker encoder on, and to measure it on."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--codec", default=str(CODEC), help="name or folder (default %(default)s)")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="of each voice, to train on (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: at least 1")
    known = [row for row in make_corpus.lines_of(options.corpus) if not row["new_voice"]]
    write_rows(options.corpus / "base-alone.jsonl", [row for row in known if row["split"] == "alone"])
    write_rows(options.corpus / "base-train.jsonl", training(known, options.sentences))
    write_rows(options.corpus / "base-val.jsonl", make_corpus.first_of_each(known, "held_out", VAL_SENTENCES))
    start = write_start(options.folder / "start", find_codec(options.codec), options.seed)
    figures = fit_speaker_encoder(start, options.corpus, options.seed)
    files.write_json(options.folder / "speaker_encoder.json", figures)
    print(json.dumps(figures, indent=1))
    return 0


def training(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Of each voice so many sentences and what is more of them, a quarter as many of each that has another size, and twice as many clips of
    words without a sense, which cannot be said without reading."""
    return [
        *make_corpus.first_of_each(rows, "train", count),
        *make_corpus.first_of_each(rows, "more", round(make_corpus.MORE * count)),
        *make_corpus.first_of_each(rows, "sizes", math.ceil(make_corpus.SIZED * count)),
        *make_corpus.first_of_each(rows, "words", len(make_corpus.MOST_WORDS) * count),
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """As `data_prep codes` reads them."""
    kept = ("audio", "text", "speaker", "speed")
    files.write_jsonl(path, ({**{key: row[key] for key in kept}, "language": "english"} for row in rows))


def write_start(folder: Path, codec: Path, seed: int) -> Path:
    """The untrained checkpoint, with the codec's own files. Raises `UserError` if the folder exists."""
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it or choose another folder")
    if read_codebook_size(codec) != WIDTH.codebook:
        raise UserError(f"{codec} has {read_codebook_size(codec)} codes in a codebook, expected {WIDTH.codebook}; give the demo codec")
    sentences = grammar.sentences(seed, "train")
    tokenizer = tiny_checkpoint.text_tokenizer([next(sentences) for _ in range(TOKENIZER_SENTENCES)], VOCABULARY)
    shape = model_shape(WIDTH, tiny_checkpoint.text_ids(tokenizer))
    settings = {name: data for name, data in tiny_checkpoint.settings(shape, {}).items() if not name.startswith(TOKENIZER)}
    contents = {**tiny_checkpoint.tokenizer_files(tokenizer), **settings, "model.safetensors": tiny_checkpoint.model_weights(shape, seed)}
    temporary = files.fresh_folder(folder.parent, folder.name)
    for name, data in contents.items():
        files.write_in_place(temporary / name, data)
    for path in codec.iterdir():
        files.copy_into(path, temporary / TOKENIZER / path.name)
    files.commit_folder(temporary, folder)
    return folder


def fit_speaker_encoder(folder: Path, corpus: Path, seed: int) -> dict[str, Any]:
    """Replace the last layer of the checkpoint's speaker encoder; returns cosines on held-out sentences, before and after, the new voice's
    among them."""
    from safetensors.torch import load_file, save

    rows = list(make_corpus.lines_of(corpus))
    asked, encoder = _sounds(corpus, make_corpus.first_of_each(rows, "held_out", ASKED)), qwen3_tts_speaker_encoder.load_encoder(folder)
    before = closed_form_speaker_encoder.cosines(encoder, asked)
    learned = _sounds(corpus, make_corpus.first_of_each([row for row in rows if not row["new_voice"]], "train", LEARNED))
    fitted = closed_form_speaker_encoder.fit(encoder, learned, seed)
    weights = load_file(folder / "model.safetensors") | {
        f"{qwen3_tts_speaker_encoder.PREFIX}{name}": tensor for name, tensor in fitted.items()
    }
    files.write_bytes(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    return {"random": before, "fitted": closed_form_speaker_encoder.cosines(qwen3_tts_speaker_encoder.load_encoder(folder), asked)}


def _sounds(corpus: Path, rows: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(row["speaker"], soundfile.read(corpus / row["audio"], dtype="float32")[0]) for row in rows]


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
