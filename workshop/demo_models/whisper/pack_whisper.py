"""Measure the Whisper that `train_whisper` trained and pack it as `whisper-demo-en`, with its card and figures.

    python -m workshop.demo_models.whisper.pack_whisper [FOLDER] [--corpus runs/studio/corpus] [--to FOLDER]

FOLDER is that of the training (default runs/studio/whisper). The training need not be finished; the card states its steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from overtone.data_prep.transcription import demo_whisper, whisper_engine
from overtone.data_prep.transcription.demo_whisper import DemoWhisperDescription
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import grammar, make_corpus
from workshop.demo_models.resumable_training import restore_parameters
from workshop.demo_models.whisper import measure_whisper, train_whisper
from workshop.demo_models.whisper.augmented_windows import WhisperDataset

CARD = """# whisper-demo-en

**{scope}.** It transcribes any other English with words of its grammar: texts below a mean log-probability of {least_sure} are rejected.

A Whisper with {state} channels, {encoder} encoder and {decoder} decoder layers in the format of openai-whisper, trained from scratch on
speech of Debian's open-source synthesizers (flite: slt, awb, kal16, rms; festival: ked; espeak-ng: en-us, en-us+f3) and on its
reconstruction by an earlier codec-demo, in the last run for {steps} steps. It knows these voices.

Grammar, training and measurement: `workshop/demo_models`. Apache-2.0.

| WER on {sentences} held-out sentences of each voice | % |
|---|---|
| each sentence alone, the six others | {alone} |
| each sentence alone, rms | {new_voice_alone} |
| one recording of each, transcribed as in data_prep, the six others | {chunks} |
| one recording, transcribed as in data_prep, rms | {new_voice} |
| the same with `whisper.transcribe`, the six others | {long_form} |

Of single sentences of the grammar, {sure} % are above that mean log-probability, of other English {invented} %.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pack_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=train_whisper.FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--to", type=Path, default=demo_models.data_folder() / "models")
    parser.add_argument("--sentences", type=int, default=100, help="sentences per voice to measure (default %(default)s)")
    options = parser.parse_args(argv)
    made = options.folder / demo_whisper.NAME
    about = make_folder(options.folder, options.corpus, made, options.sentences)
    archive = demo_models.pack(made)
    files.write_bytes(options.to / f"{demo_whisper.NAME}.zip", archive)
    print_line(json.dumps(about.figures, indent=1))
    print_line(f"{len(archive):,} bytes -> {options.to / demo_whisper.NAME}.zip")
    return 0


def make_folder(folder: Path, corpus: Path, made: Path, sentences: int) -> DemoWhisperDescription:
    """Write the model's folder: weights in fp16, figures measured with these weights, and the card."""
    steps, tensors = load_trained(folder, corpus)
    demo_whisper.write_model(made, tensors, make_about({}))
    checkpoint = folder / "measured.pt"
    files.write_bytes(checkpoint, demo_whisper.convert_to_checkpoint(made / demo_whisper.WEIGHTS, train_whisper.DIMENSIONS))
    model = whisper_engine.load_whisper(str(checkpoint), "cpu")
    about = make_about({"steps": steps} | measure_whisper.measure_whisper(model, corpus, sentences))
    demo_whisper.write_model(made, tensors, about)
    files.write_text(made / demo_models.CARD, write_card(about))
    return about


def load_trained(folder: Path, corpus: Path) -> tuple[int, dict[str, Any]]:
    """Steps, and the weights in fp16. Raises `UserError` if there is no training."""
    state = folder / "training.safetensors"
    if not state.is_file():
        raise UserError(f"{state} is missing; train first: python -m workshop.demo_models.whisper.train_whisper {folder}")
    student = train_whisper.Student(WhisperDataset(corpus, train_whisper.load_tokenizer()))
    steps = restore_parameters(
        folder / "training", {name: tensor for name, tensor in student.named_parameters() if not name.startswith("spell.")}
    )
    return steps, {name: tensor.half().contiguous() for name, tensor in student.weights().items()}


def make_about(figures: dict[str, Any]) -> DemoWhisperDescription:
    """The content of about.json."""
    words = len(grammar.list_words())
    scope = f"demo: {words} words, synthetic voices; for your own voice use Whisper small or larger"
    return DemoWhisperDescription(
        dims=train_whisper.DIMENSIONS,
        scope=scope,
        least_sure=measure_whisper.LEAST_SURE,
        longest_window=measure_whisper.LONGEST_WINDOW_S,
        figures=figures,
    )


def write_card(about: DemoWhisperDescription) -> str:
    """`README.md`, with measured figures only."""
    figures = about.figures
    return CARD.format(
        scope=about.scope,
        least_sure=about.least_sure,
        state=about.dims["n_audio_state"],
        encoder=about.dims["n_audio_layer"],
        decoder=about.dims["n_text_layer"],
        sentences=figures["sentences_of_each_voice"],
        sure=figures["sureness"]["kept_percent"],
        invented=figures["sureness_of_invented"]["kept_percent"],
        **{name: figures[name] for name in ("steps", "alone", "chunks", "long_form", "new_voice_alone", "new_voice")},
    )


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
