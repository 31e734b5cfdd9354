"""Put the base that the recipe trained into the package, as `qwen3-tts-demo-base`, with its card and its figures.

    python -m recipes.voice_clone.studio.base.pack_base [RUN] [--corpus runs/studio/corpus] [--to FOLDER]

RUN (default runs/studio/base/run): its newest checkpoint. whisper-demo-en and codec-demo must be packed: the one counts words, the other
is a part of the base and ships once. Measured is what a user gets: held-out sentences, each voice cloned from another clip of it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.audio.waveform import Samples
from data_prep.audio_codecs import qwen3_tts
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from data_prep.transcription import demo_whisper
from finetune.checkpointing import checkpoint
from finetune.errors import UserError, exit_code
from finetune.exporting import export
from finetune.storage import demo_models, files
from recipes.speech.evaluation import systems
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.scoring import read_clip
from recipes.speech.voice import SpeechSampling
from recipes.voice_clone.exporting import exported_files
from recipes.voice_clone.inference.synthesizer import SPEECH
from recipes.voice_clone.model import sampling_settings
from recipes.voice_clone.studio import judges, pocketsphinx_judge
from recipes.voice_clone.studio.base import make_base
from recipes.voice_clone.studio.codec import measure_codec, pack_codec
from recipes.voice_clone.studio.corpus import make_corpus
from recipes.voice_clone.studio.judges import Judge

NAME = "qwen3-tts-demo-base"
JUDGES = (demo_whisper.NAME, pocketsphinx_judge.NAME)
LONGEST_S = 12.0
SAMPLED = {**sampling_settings.STOCK, "do_sample": False, "repetition_penalty": 1.0, "subtalker_dosample": False}
"""What it says of itself in `generation_config.json`: what so small a model thinks second best sounds worse than its best. Of 256 codes the
right one is often the last one again, and a penalty would push it off."""
CARD = """# qwen3-tts-demo-base

**A demo model: it says sentences of {words} words, in synthetic voices.** Any other text it says with the words that it knows.
For your own voice use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base.

In the architecture of Qwen3-TTS, a Base model: talker and code predictor of {parameters:.1f} M parameters, speaker encoder, and codec-demo.
It was trained from nothing by the recipe `voice_clone`, the last time for {steps} steps, on sentences that Debian's open-source
synthesisers said (flite: slt, awb, kal16; festival: ked; espeak-ng: en-us, en-us+f3), and on resampled ones, which are other voices. It
never heard flite's rms, but voices that were made of it with a mouth a fifth and a seventh smaller, and a sixth larger.

| wrong words in {texts} held-out sentences of the six voices, % | {judges} |
|---|{columns}
| the synthesisers' own sound | {original} |
| the same through codec-demo: the ceiling | {codec} |
| said by this model, the voice cloned from another clip of it | {cloned} |

By voice, by whisper-demo-en: {by_voice}. Not ended by itself: {runaways} of {texts}. whisper-demo-en has heard codec-demo in its training;
pocketsphinx, which listens for the demo's grammar, never has heard that, nor any of these voices, of which it hardly understands espeak's.

Grammar, training and measurement: `recipes/voice_clone/studio`. Licence: Apache-2.0.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pack_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, default=make_base.FOLDER / "run")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument(
        "--sentences", type=int, default=make_base.VAL_SENTENCES, help="of each voice, to measure with (default %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=demo_models.HERE)
    options = parser.parse_args(argv)
    for needed in (demo_whisper.NAME, pack_codec.NAME):
        if not demo_models.is_shipped(needed):
            raise UserError(f"{demo_models.HERE / needed}.zip is missing; pack it first (recipes/voice_clone/studio/README.md)")
    asked = judges.called(JUDGES)
    made = exported(options.run, options.run.parent / NAME)
    figures = {"steps": checkpoint.step_of(checkpoint.find(options.run)), **measure(made, options.corpus, options.sentences, asked)}
    archive = packed(made, figures)
    files.write_bytes(options.to / f"{NAME}.zip", archive)
    print(json.dumps(figures, indent=1))
    print(f"{len(archive):,} bytes -> {options.to / NAME}.zip")
    return 0


def exported(run: Path, target: Path) -> Path:
    """The newest checkpoint as a base in bf16, as the released ones are, with the decoder that was trained meanwhile, and how to sample.

    Without names: who trains it further shall not find forty voices of the studio beside the own one."""
    if target.exists():
        files.discard(target)
    export.export(run, target, form="base", dtype="bf16")
    nameless(target)
    settings = target / sampling_settings.CONFIG
    files.write_json(settings, json.loads(settings.read_text(encoding="utf-8")) | SAMPLED)
    files.discard(target / CODEC_FOLDER)
    for path in sorted(qwen3_tts.find_codec(pack_codec.NAME).iterdir()):
        files.copy_into(path, target / CODEC_FOLDER / path.name)
    return target


def nameless(base: Path) -> None:
    """Take the names of the voices that it was trained on out of an exported base, as the released ones have none."""
    path = base / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    files.write_json(path, {**config, "talker_config": {**config["talker_config"], "spk_id": {}, "spk_is_dialect": {}}})
    files.discard(base / exported_files.VOICES)


def measure(base: Path, corpus: Path, sentences: int, asked: dict[str, Judge]) -> dict[str, Any]:
    """Wrong words in percent, by each judge: of real sound, of the same through the codec, of what the base says; the last by voice too."""
    tokenizer = qwen3_tts.load_codec(base / CODEC_FOLDER, "cpu")
    items = held_out(corpus, sentences)
    originals = [read_clip(item.recording) for item in items if item.recording]
    system, settings = systems.untrained_system(SPEECH, base), SpeechSampling(max_seconds=LONGEST_S)
    takes = list(systems.speak(SPEECH, system, base, items, settings, 8, base.parent / "said"))
    said = {
        "original": list(zip(items, originals, strict=True)),
        "codec": [(item, measure_codec.reconstructed(tokenizer, wave)) for item, wave in zip(items, originals, strict=True)],
        "cloned": [(take.item, read_clip(take.path)) for take in takes],
    }
    voices = dict.fromkeys(item.speaker for item in items)
    return {
        "texts": len(items),
        "wrong_words": {name: {what: wrong_words(judge, by) for what, by in said.items()} for name, judge in asked.items()},
        "by_voice": {
            voice: wrong_words(asked[demo_whisper.NAME], [one for one in said["cloned"] if one[0].speaker == voice]) for voice in voices
        },
        "runaways": sum(not take.ended for take in takes),
    }


def held_out(corpus: Path, sentences: int) -> list[Item]:
    """Sentences that no training sees, each with the next one's clip of the same voice to clone from."""
    known = (row for row in make_corpus.lines_of(corpus) if not row["new_voice"])
    return list(_paired(make_corpus.first_of_each(known, "held_out", sentences), corpus))


def _paired(rows: Sequence[dict[str, Any]], corpus: Path) -> Iterator[Item]:
    for number, row in enumerate(rows):
        own = [other for other in rows if other["speaker"] == row["speaker"]]
        reference = own[(own.index(row) + 1) % len(own)]
        audio, clip = corpus / row["audio"], corpus / reference["audio"]
        yield Item(f"{number:03d}", row["text"], row["speaker"], "english", audio, clip)


def wrong_words(judge: Judge, said: Sequence[tuple[Item, Samples]]) -> float:
    """In percent, over all words."""
    return round(100 * judge([(item.text, wave) for item, wave in said]), 1)


def packed(made: Path, figures: dict[str, Any]) -> bytes:
    """The archive, without the codec, which `demo_models` puts back."""
    from finetune.modeling.loading import tensor_shapes
    from recipes.voice_clone.studio.corpus import grammar

    parameters = sum(math.prod(shape) for name, shape in tensor_shapes(made).items() if name.startswith("talker."))
    by_voice = ", ".join(f"{voice} {rate} %" for voice, rate in figures["by_voice"].items())
    told = {"steps": figures["steps"], "texts": figures["texts"], "runaways": figures["runaways"], "by_voice": by_voice}
    files.write_json(made / demo_models.FIGURES, figures)
    table = _columns(figures["wrong_words"])
    files.write_text(made / demo_models.CARD, CARD.format(words=len(grammar.vocabulary()), parameters=parameters / 1e6, **told, **table))
    files.write_json(made / demo_models.BUILT_ON, {CODEC_FOLDER: pack_codec.NAME})
    files.discard(made / CODEC_FOLDER)
    return demo_models.pack(made)


def _columns(rates: dict[str, dict[str, float]]) -> dict[str, str]:
    """Rows of a table with a column for each judge."""
    rows = {what: " | ".join(str(of_judge[what]) for of_judge in rates.values()) for what in ("original", "codec", "cloned")}
    return {"judges": " | ".join(rates), "columns": "---|" * len(rates), **rows}


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
