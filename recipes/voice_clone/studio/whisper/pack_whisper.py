"""Measure what `train_whisper` trained and put it into the package, as `whisper-demo-en`, with its figures and its card.

    python -m recipes.voice_clone.studio.whisper.pack_whisper [FOLDER] [--corpus runs/studio/corpus] [--to FOLDER]

FOLDER: of the training (default runs/studio/whisper). It need not be at its end; how far it was is written down.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from data_prep.transcription import demo_whisper, whisper_engine
from data_prep.transcription.demo_whisper import DemoWhisperDescription
from finetune.errors import UserError, exit_code
from finetune.storage import demo_models, files
from recipes.voice_clone.studio.corpus import grammar, make_corpus
from recipes.voice_clone.studio.resumable_training import restore
from recipes.voice_clone.studio.whisper import measure_whisper, train_whisper
from recipes.voice_clone.studio.whisper.training_windows import Speech

CARD = """# whisper-demo-en

**{scope}.** It answers any other English with words of its grammar: texts below a mean log-probability of {least_sure} are rejected.

A Whisper of {state} channels, {encoder} encoder and {decoder} decoder layers in the format of openai-whisper, trained from nothing on
sentences that Debian's open-source synthesisers said (flite: slt, awb, kal16, rms; festival: ked; espeak-ng: en-us, en-us+f3), and on
what codec-demo makes of them; the last time for {steps} steps. It knows these voices.

Grammar, training and measurement: `recipes/voice_clone/studio`. Apache-2.0.

| word error rate on {sentences} held-out sentences of each voice | % |
|---|---|
| each sentence alone, the six others | {alone} |
| each sentence alone, rms | {new_voice_alone} |
| one recording of each, as data_prep hears it, the six others | {chunks} |
| one recording, as data_prep hears it, rms | {new_voice} |
| the same by `whisper.transcribe`, the six others | {long_form} |

Of single sentences of the grammar {sure} % are above that mean log-probability, of other English {invented} %.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pack_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=train_whisper.FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--to", type=Path, default=demo_models.HERE)
    parser.add_argument("--sentences", type=int, default=100, help="of each voice, to measure with (default %(default)s)")
    options = parser.parse_args(argv)
    made = options.folder / demo_whisper.NAME
    told = make(options.folder, options.corpus, made, options.sentences)
    archive = demo_models.pack(made)
    files.write_bytes(options.to / f"{demo_whisper.NAME}.zip", archive)
    print(json.dumps(told.figures, indent=1))
    print(f"{len(archive):,} bytes -> {options.to / demo_whisper.NAME}.zip")
    return 0


def make(folder: Path, corpus: Path, made: Path, sentences: int) -> DemoWhisperDescription:
    """The folder of the model: weights in fp16, measured as they are loaded from there, and the card."""
    steps, tensors = trained(folder, corpus)
    demo_whisper.write_model(made, tensors, about({}))
    checkpoint = folder / "measured.pt"
    files.write_bytes(checkpoint, demo_whisper.convert_to_checkpoint(made / demo_whisper.WEIGHTS, train_whisper.DIMENSIONS))
    model = whisper_engine.load_whisper(str(checkpoint), "cpu")
    told = about({"steps": steps} | measure_whisper.measure(model, corpus, sentences))
    demo_whisper.write_model(made, tensors, told)
    files.write_text(made / demo_models.CARD, card(told))
    return told


def trained(folder: Path, corpus: Path) -> tuple[int, dict[str, Any]]:
    """Steps, and the weights in fp16. Raises `UserError` if nothing was trained."""
    state = folder / "training.safetensors"
    if not state.is_file():
        raise UserError(f"{state} is missing; train first: python -m recipes.voice_clone.studio.whisper.train_whisper {folder}")
    student = train_whisper.Student(Speech(corpus, train_whisper.tokenizer()))
    steps = restore(folder / "training", {name: tensor for name, tensor in student.named_parameters() if not name.startswith("spell.")})
    return steps, {name: tensor.half().contiguous() for name, tensor in student.weights().items()}


def about(figures: dict[str, Any]) -> DemoWhisperDescription:
    words = len(grammar.vocabulary())
    scope = f"demo: {words} words, synthetic voices; for your own voice use Whisper small or larger"
    return DemoWhisperDescription(
        dims=train_whisper.DIMENSIONS,
        scope=scope,
        least_sure=measure_whisper.LEAST_SURE,
        longest_window=measure_whisper.LONGEST_WINDOW_S,
        figures=figures,
    )


def card(told: DemoWhisperDescription) -> str:
    """For people; every figure in it was measured."""
    figures = told.figures
    return CARD.format(
        scope=told.scope,
        least_sure=told.least_sure,
        state=told.dims["n_audio_state"],
        encoder=told.dims["n_audio_layer"],
        decoder=told.dims["n_text_layer"],
        sentences=figures["sentences_of_each_voice"],
        sure=figures["sureness"]["kept_percent"],
        invented=figures["sureness_of_invented"]["kept_percent"],
        **{name: figures[name] for name in ("steps", "alone", "chunks", "long_form", "new_voice_alone", "new_voice")},
    )


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
