"""Put what `train_codec` trained into the package, as `codec-demo`, with its card and its figures.

    python -m recipes.voice_clone.studio.codec.pack_codec [FOLDER] [--corpus runs/studio/corpus] [--asr JUDGE]… [--to FOLDER]

FOLDER: of the training (default runs/studio/codec). The decoder need not be at its end; how far it was is written down.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER as TOKENIZER
from finetune.errors import UserError, exit_code
from finetune.storage import demo_models, files
from recipes.voice_clone.studio import judges
from recipes.voice_clone.studio.codec import codebooks, codec_model, decoder, encoder, measure_codec, train_codec
from recipes.voice_clone.studio.corpus.make_corpus import FOLDER as CORPUS
from recipes.voice_clone.studio.corpus.voices import VOICES
from recipes.voice_clone.studio.resumable_training import restore

NAME = "codec-demo"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pack_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=train_codec.FOLDER)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    judges.add_option(parser)
    parser.add_argument(
        "--sentences", type=int, default=measure_codec.SENTENCES, help="of each voice, to measure with (default %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=demo_models.HERE)
    options = parser.parse_args(argv)
    asked = judges.called(options.asr)
    model, steps = assembled(options.folder)
    final = options.folder / NAME
    files.discard(final)
    tokenizer = codec_model.write_folder(model, final / TOKENIZER)
    figures = {"steps": steps, **measure_codec.measure(tokenizer, options.corpus, options.sentences, asked)}
    archive = packed(final, figures)
    files.write_bytes(options.to / f"{NAME}.zip", archive)
    print(json.dumps(figures, indent=1))
    print(f"{len(archive):,} bytes -> {options.to / NAME}.zip")
    return 0


def assembled(folder: Path) -> tuple[Any, dict[str, int]]:
    """The model of a training as it stands, rounded to what fp16 holds, and the steps of its parts. Raises `UserError` before there are
    codebooks, an encoder and a decoder."""
    for part in ("books", "encoder", "wave"):
        if not (folder / f"{part}.safetensors").is_file():
            raise UserError(
                f"{folder / part}.safetensors is missing; train it first: python -m recipes.voice_clone.studio.codec.train_codec {folder}"
            )
    model = codec_model.build(seed=0)
    steps = {
        "encoder": restore(folder / "encoder", encoder.taught(model)),
        "wave": restore(folder / "wave", decoder.taught(model)),
    }
    codec_model.round_to_half(model)
    codec_model.fill_books(model, codebooks.load(folder / "books.safetensors"))
    return model, steps


def packed(made: Path, figures: dict[str, Any]) -> bytes:
    """The archive, with figures and card."""
    files.write_json(made / demo_models.FIGURES, figures)
    files.write_text(made / demo_models.CARD, card(figures))
    return demo_models.pack(made)


def card(figures: dict[str, Any]) -> str:
    """`README.md`: what it is, what it is not for, what it reaches."""
    voices = ", ".join(voice.name for voice in VOICES)
    distance, told = figures["mel_cepstral_distance_db"], figures["speaker_accuracy"]
    counted = [
        f"| word error rate, {judge} | {rates['originals']:.1%} of originals, {rates['reconstructions']:.1%} of reconstructions |"
        for judge, rates in figures["word_error_rate"].items()
    ]
    heard = "\n".join(counted) or "| word error rate | not measured |"
    return f"""# {NAME}

**A demo model. It knows {len(VOICES)} synthetic voices ({voices}) and no other; on your own recordings it fails.**
For your own voice use the tokenizer of Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base.

A small speech tokenizer in the architecture of Qwen3-TTS-Tokenizer-12Hz, trained from nothing: 24 kHz mono ↔ 12.5 frames a second of
16 codes below 256. It loads with `Qwen3TTSTokenizer.from_pretrained("{TOKENIZER}")`; run it in fp32.

Measured on {figures["clips"]} held-out sentences of these voices ({figures["seconds"]} s), decoder after {figures["steps"]["wave"]} steps:

| | |
|---|---|
| mel-cepstral distance to the original | {distance["all"]} dB (the average sound of all clips: {distance["mean_frame"]} dB) |
| error of the pitch, median | {figures["pitch_error_cents"]} cents |
| speaker told rightly by linear discriminants | {told["originals"]:.1%} of originals, {told["reconstructions"]:.1%} of reconstructions |
{heard}

whisper-demo-en has heard this codec say other sentences in its training; pocketsphinx, which listens for the demo's grammar, has not.

Made by `python -m recipes.voice_clone.studio.codec.train_codec`, measured and packed by
`python -m recipes.voice_clone.studio.codec.pack_codec`, from speech of Debian's flite, festival and
espeak-ng (licences: `recipes/voice_clone/studio/README.md`). Licence: Apache-2.0.
"""


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
