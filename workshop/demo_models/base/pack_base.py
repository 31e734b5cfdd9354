"""Measure the base that the recipe trained and pack it as `qwen3-tts-demo-base`, with its card and figures.

    python -m workshop.demo_models.base.pack_base [RUN] [--corpus runs/studio/corpus] [--to FOLDER]

Packs the newest checkpoint of RUN (default runs/studio/base/run). whisper-demo-en and codec-demo must be packed before: the first measures
the WER; the second is a part of the base and is shipped once. Measures what a user gets: held-out sentences, each voice cloned from another
clip.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.data_prep.transcription import demo_whisper
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.exporting import export
from overtone.finetune.modeling.loading import tensor_shapes
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_line
from overtone.recipes.qwen3_tts.model.sampling_settings import STOCK
from overtone.recipes.speech.evaluation import systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import CONFIG
from overtone.recipes.speech.voices_json_schema import VOICES
from overtone.recipes.voice_clone.speech_registration import SPEECH
from workshop.demo_models import pocketsphinx_recognizer, recognizers
from workshop.demo_models.base import prepare_base_training
from workshop.demo_models.codec import measure_codec, pack_codec
from workshop.demo_models.corpus import grammar, make_corpus
from workshop.demo_models.recognizers import WordErrorMeasure

NAME = "qwen3-tts-demo-base"
RECOGNIZERS = (demo_whisper.NAME, pocketsphinx_recognizer.NAME)
MAX_SECONDS = 12.0
GENERATION_CONFIG = {**STOCK, "do_sample": False, "repetition_penalty": 1.0, "subtalker_dosample": False}
"""Sampling settings in its `generation_config.json`. In so small a model, the second most likely code sounds worse than the most likely
one. Of only 256 codes, the right one is often the previous one again, which a penalty would suppress."""
CARD = """# qwen3-tts-demo-base

**A demo model: it speaks sentences of {words} words, in synthetic voices.** It speaks any other text with the words that it knows.
For your own voice use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base.

A Base model with the architecture of Qwen3-TTS: talker and code predictor with {parameters:.1f} M parameters, speaker encoder, codec-demo.
The recipe `voice_clone` trained it from scratch, in the last run for {steps} steps, on speech of Debian's open-source synthesizers (flite:
slt, awb, kal16; festival: ked; espeak-ng: en-us, en-us+f3), and on resampled clips, which sound like other voices. It was not trained on
flite's rms, but on clips of rms that were resampled to a vocal tract a fifth and a seventh smaller, and a sixth larger.

| WER on {texts} held-out sentences of the six voices, % | {recognizers} |
|---|{columns}
| the synthesizers' audio | {original} |
| the same after codec-demo | {codec} |
| speech of this model, the voice cloned from another clip | {cloned} |

WER per voice with whisper-demo-en: {by_voice}. Speech without an end: {runaways} of {texts}.

whisper-demo-en is a small recognizer that we trained on these voices and on output of an earlier codec-demo; a released Whisper has higher
WERs. pocketsphinx, restricted to the demo's grammar, was trained neither on that nor on these voices; it hardly understands espeak's.

Grammar, training and measurement: `workshop/demo_models`. Licence: Apache-2.0.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pack_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", nargs="?", type=Path, default=prepare_base_training.FOLDER / "run")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument(
        "--sentences", type=int, default=prepare_base_training.VAL_SENTENCES, help="sentences per voice to measure (default %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=demo_models.data_folder() / "models")
    options = parser.parse_args(argv)
    for needed in (demo_whisper.NAME, pack_codec.NAME):
        if not demo_models.is_demo_model(needed):
            raise UserError(f"{needed}.zip is missing in {demo_models.data_folder()}; pack it first (see workshop/demo_models/README.md)")
    measures = recognizers.load_recognizers(RECOGNIZERS)
    made = export_base(options.run, options.run.parent / NAME)
    figures = {"steps": checkpoint.step_of(checkpoint.find(options.run)), **measure(made, options.corpus, options.sentences, measures)}
    archive = pack_archive(made, figures)
    files.write_bytes(options.to / f"{NAME}.zip", archive)
    print_line(json.dumps(figures, indent=1))
    print_line(f"{len(archive):,} bytes -> {options.to / NAME}.zip")
    return 0


def export_base(run: Path, target: Path) -> Path:
    """Export the newest checkpoint as a base in bf16, like the released ones, with the current codec and with its sampling settings.

    Without speaker names: a model trained from it should not list forty voices of the corpus beside the user's own.
    """
    if target.exists():
        files.discard(target)
    export.export(run, target, form="base", dtype="bf16")
    remove_speaker_names(target)
    settings = target / CONFIG
    files.write_json(settings, json.loads(settings.read_text(encoding="utf-8")) | GENERATION_CONFIG)
    files.discard(target / CODEC_FOLDER)
    for path in sorted(qwen3_tts_codec.find_codec(pack_codec.NAME).iterdir()):
        files.copy_into(path, target / CODEC_FOLDER / path.name)
    return target


def remove_speaker_names(base: Path) -> None:
    """Remove the speaker names from an exported base; the released ones have none."""
    path = base / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    files.write_json(path, {**config, "talker_config": {**config["talker_config"], "spk_id": {}, "spk_is_dialect": {}}})
    files.discard(base / VOICES)


def measure(base: Path, corpus: Path, sentences: int, measures: dict[str, WordErrorMeasure]) -> dict[str, Any]:
    """WER in percent by each recognizer: of the original audio, of its codec reconstruction, and of the base's speech; for the last one
    also per voice."""
    tokenizer = qwen3_tts_codec.load_codec(base / CODEC_FOLDER, "cpu")
    items = select_held_out(corpus, sentences)
    originals = [read_clip(item.recording) for item in items if item.recording]
    system, settings = systems.untrained_system(SPEECH, base), SpeechSampling(max_seconds=MAX_SECONDS)
    takes = list(systems.speak(SPEECH, system, base, items, settings, 8, base.parent / "said"))
    spoken = {
        "original": list(zip(items, originals, strict=True)),
        "codec": [(item, measure_codec.reconstruct(tokenizer, wave)) for item, wave in zip(items, originals, strict=True)],
        "cloned": [(take.item, read_clip(take.path)) for take in takes],
    }
    voices = dict.fromkeys(item.speaker for item in items)
    return {
        "texts": len(items),
        "wrong_words": {
            name: {kind: measure_word_errors(measure, clips) for kind, clips in spoken.items()} for name, measure in measures.items()
        },
        "by_voice": {
            voice: measure_word_errors(measures[demo_whisper.NAME], [one for one in spoken["cloned"] if one[0].speaker == voice])
            for voice in voices
        },
        "runaways": sum(not take.ended for take in takes),
    }


def select_held_out(corpus: Path, sentences: int) -> list[Item]:
    """Held-out sentences, each with the next clip of the same voice as reference."""
    known = (row for row in make_corpus.read_corpus(corpus) if not row["new_voice"])
    return list(_pair_with_references(make_corpus.select_first(known, "held_out", sentences), corpus))


def _pair_with_references(rows: Sequence[dict[str, Any]], corpus: Path) -> Iterator[Item]:
    for number, row in enumerate(rows):
        own = [other for other in rows if other["speaker"] == row["speaker"]]
        reference = own[(own.index(row) + 1) % len(own)]
        audio, clip = corpus / row["audio"], corpus / reference["audio"]
        yield Item(f"{number:03d}", row["text"], row["speaker"], "english", audio, clip)


def measure_word_errors(measure: WordErrorMeasure, spoken: Sequence[tuple[Item, Samples]]) -> float:
    """WER in percent over all sentences."""
    return round(100 * measure([(item.text, wave) for item, wave in spoken]), 1)


def pack_archive(made: Path, figures: dict[str, Any]) -> bytes:
    """The archive with card and figures, without the codec, which `demo_models` adds when it unpacks it."""
    parameters = sum(math.prod(shape) for name, shape in tensor_shapes(made).items() if name.startswith("talker."))
    by_voice = ", ".join(f"{voice} {rate} %" for voice, rate in figures["by_voice"].items())
    card_figures = {"steps": figures["steps"], "texts": figures["texts"], "runaways": figures["runaways"], "by_voice": by_voice}
    files.write_json(made / demo_models.FIGURES, figures)
    table = _format_columns(figures["wrong_words"])
    files.write_text(
        made / demo_models.CARD, CARD.format(words=len(grammar.list_words()), parameters=parameters / 1e6, **card_figures, **table)
    )
    files.write_json(made / demo_models.BUILT_ON, {CODEC_FOLDER: pack_codec.NAME})
    files.discard(made / CODEC_FOLDER)
    return demo_models.pack(made)


def _format_columns(rates: dict[str, dict[str, float]]) -> dict[str, str]:
    """Cells of the card's table, with one column per recognizer."""
    rows = {what: " | ".join(str(of_judge[what]) for of_judge in rates.values()) for what in ("original", "codec", "cloned")}
    return {"recognizers": " | ".join(rates), "columns": "---|" * len(rates), **rows}


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
