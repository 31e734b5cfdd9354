"""Measure the codec that `train_codec` trained and pack it as `codec-demo`, with its card and figures.

    python -m workshop.demo_models.codec.pack_codec [FOLDER] [--corpus runs/studio/corpus] [--asr RECOGNIZER]… [--to FOLDER]

FOLDER is that of the training (default runs/studio/codec). The decoder need not be finished; the card states its steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_line
from workshop.demo_models import recognizers
from workshop.demo_models.codec import codebooks, codec_model, decoder_training, encoder_training, measure_codec, train_codec
from workshop.demo_models.corpus.make_corpus import FOLDER as CORPUS
from workshop.demo_models.corpus.voices import VOICES
from workshop.demo_models.resumable_training import restore_parameters

NAME = "codec-demo"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pack_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=train_codec.FOLDER)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    recognizers.add_option(parser)
    parser.add_argument(
        "--sentences", type=int, default=measure_codec.SENTENCES, help="sentences per voice to measure (default %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=demo_models.data_folder() / "models")
    options = parser.parse_args(argv)
    measures = recognizers.load_recognizers(options.asr)
    model, steps = assemble_model(options.folder)
    final = options.folder / NAME
    files.discard(final)
    tokenizer = codec_model.write_folder(model, final / TOKENIZER)
    figures = {"steps": steps, **measure_codec.measure_codec(tokenizer, options.corpus, options.sentences, measures)}
    archive = pack_archive(final, figures)
    files.write_bytes(options.to / f"{NAME}.zip", archive)
    print_line(json.dumps(figures, indent=1))
    print_line(f"{len(archive):,} bytes -> {options.to / NAME}.zip")
    return 0


def assemble_model(folder: Path) -> tuple[Any, dict[str, int]]:
    """The current model of a training, rounded to fp16 values, and the steps of its parts. Raises `UserError` if codebooks, encoder or
    decoder are missing."""
    for part in ("books", "encoder", "wave"):
        if not (folder / f"{part}.safetensors").is_file():
            raise UserError(
                f"{folder / part}.safetensors is missing; train it first: python -m workshop.demo_models.codec.train_codec {folder}"
            )
    model = codec_model.build_model(seed=0)
    steps = {
        "encoder": restore_parameters(folder / "encoder", encoder_training.select_parameters(model)),
        "wave": restore_parameters(folder / "wave", decoder_training.select_parameters(model)),
    }
    codec_model.round_to_fp16(model)
    codec_model.fill_codebooks(model, codebooks.load(folder / "books.safetensors"))
    return model, steps


def pack_archive(made: Path, figures: dict[str, Any]) -> bytes:
    """The archive, with figures and card."""
    files.write_json(made / demo_models.FIGURES, figures)
    files.write_text(made / demo_models.CARD, write_card(figures))
    return demo_models.pack(made)


def write_card(figures: dict[str, Any]) -> str:
    """`README.md`: purpose, limits and figures."""
    voices = ", ".join(voice.name for voice in VOICES)
    distance, accuracy = figures["mel_cepstral_distance_db"], figures["speaker_accuracy"]
    rows = [
        f"| word error rate, {recognizer} | {rates['originals']:.1%} of originals, {rates['reconstructions']:.1%} of reconstructions |"
        for recognizer, rates in figures["word_error_rate"].items()
    ]
    word_errors = "\n".join(rows) or "| word error rate | not measured |"
    return f"""# {NAME}

**A demo model. It knows {len(VOICES)} synthetic voices ({voices}) and no other; on your own recordings it fails.**
For your own voice use the tokenizer of Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base.

A small speech tokenizer with the architecture of Qwen3-TTS-Tokenizer-12Hz, trained from scratch: 24 kHz mono ↔ 12.5 frames per second of
16 codes below 256. It loads with `Qwen3TTSTokenizer.from_pretrained("{TOKENIZER}")`; run it in fp32.

Measured on {figures["clips"]} held-out sentences of these voices ({figures["seconds"]} s), decoder after {figures["steps"]["wave"]} steps:

| | |
|---|---|
| mel-cepstral distance to the original | {distance["all"]} dB (the average sound of all clips: {distance["mean_frame"]} dB) |
| pitch error, median | {figures["pitch_error_cents"]} cents |
| decoded audio is late by | {figures["delay_ms"]} ms |
| speaker identified by discriminants | {accuracy["originals"]:.1%} of originals, {accuracy["reconstructions"]:.1%} of reconstructions |
{word_errors}

whisper-demo-en is a small recognizer that we trained on these voices and on output of an earlier version of this codec (other sentences); a
released Whisper has higher rates. pocketsphinx, restricted to the demo's grammar, was trained on neither.

Trained as `workshop/demo_models/README.md` describes, measured and packed by
`python -m workshop.demo_models.codec.pack_codec`, from speech of Debian's flite, festival and
espeak-ng (licences: `workshop/demo_models/README.md`). Licence: Apache-2.0.
"""


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
