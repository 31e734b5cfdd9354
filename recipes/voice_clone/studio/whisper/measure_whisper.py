"""How well a demo Whisper understands what it never heard: word error rates in percent.

    python -m recipes.voice_clone.studio.whisper.measure_whisper [--model whisper-demo-en] [--corpus runs/studio/corpus] [--sentences 100]

`alone`: each held-out sentence by itself. `chunks`: all of a voice's in one recording, as data_prep hears it: speech is found, packed to
9 s and decoded in batches. `long_form`: the same recordings by `whisper.transcribe`. These are for the voices that the base learns;
`new_voice_alone` and `new_voice` are `alone` and `chunks` for the demo's new voice. `sureness` and `sureness_of_invented`: mean
log-probabilities of sentences of the grammar and of ordinary English, each alone, and which share of them lies above the limit below which
data_prep rejects.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile
import soxr

from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from data_prep.segmentation import vad
from data_prep.transcription import demo_whisper, whisper_engine
from finetune.errors import UserError, exit_code
from recipes.voice_clone.studio.corpus import grammar, make_corpus
from recipes.voice_clone.studio.corpus.make_sample import RECORDINGS
from recipes.voice_clone.studio.corpus.voices import NEW_VOICE, VOICES, Wave, silence, speak

LEAST_SURE = -0.1
"""Mean log-probability between what the model gives in its grammar and what it gives to other English."""
LONGEST_WINDOW_S = 9.0
"""Packed into one window, as data_prep packs it for this model: two or three sentences. Of shorter ones and of longer ones it hears more
words wrongly: at 7 s more sentences are cut, and of more than 10 s it was not taught to listen without times."""
PAUSE_S = (0.3, 1.2)
ROOM = 10 ** (-66 / 20)
"""RMS of the recordings' noise."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="measure_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=demo_whisper.NAME, help="name or .pt file (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--sentences", type=int, default=100, help="of each voice, at most (default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: at least 1")
    print(json.dumps(measure(whisper_engine.load_whisper(options.model, "cpu"), options.corpus, options.sentences), indent=1))
    return 0


def measure(model: Any, corpus: Path, sentences: int) -> dict[str, Any]:
    """All figures, by voice where they differ by voice."""
    held_out = [row for row in make_corpus.lines_of(corpus) if row["split"] == "held_out"]
    heard = {voice.name: _hear(model, corpus, [row for row in held_out if row["speaker"] == voice.name][:sentences]) for voice in VOICES}
    new, known = heard[NEW_VOICE.name], [one for name, one in heard.items() if name != NEW_VOICE.name]
    return {
        "sentences_of_each_voice": len(new.texts),
        "alone": _percent(known, "alone"),
        "chunks": _percent(known, "chunks"),
        "long_form": _percent(known, "long_form"),
        "new_voice_alone": _percent([new], "alone"),
        "new_voice": _percent([new], "chunks"),
        "by_voice": {name: {how: _percent([one], how) for how in ("alone", "chunks", "long_form")} for name, one in heard.items()},
        "sureness": _sureness([sure for one in known for sure in one.sure]),
        "sureness_of_invented": _sureness([heard_alone(model, wave)[1] for wave in ordinary_english()]),
    }


@dataclass(frozen=True)
class Heard:
    """What one voice said, and what was understood in each way."""

    texts: list[str]
    alone: str
    chunks: str
    long_form: str
    sure: list[float | None]
    """Of each sentence alone."""


def _hear(model: Any, corpus: Path, rows: list[dict[str, Any]]) -> Heard:
    waves = [soundfile.read(corpus / row["audio"], dtype="float32")[0] for row in rows]
    recording = one_recording(waves)
    alone = [heard_alone(model, wave) for wave in waves]
    return Heard(
        texts=[row["text"] for row in rows],
        alone=" ".join(text for text, _ in alone),
        chunks=heard_in_chunks(model, recording),
        long_form=heard_at_length(model, recording),
        sure=[sure for _, sure in alone],
    )


def one_recording(waves: Sequence[Wave]) -> Audio:
    """Sentences at `MASTER_RATE` with pauses, on faint noise, as one recording at `SPEECH_RATE`."""
    random = np.random.default_rng(len(waves))
    parts = [part for wave in waves for part in (silence(random.uniform(*PAUSE_S)), wave)]
    sound = np.concatenate([*parts, silence(0.6)])
    sound += random.normal(0, ROOM, len(sound)).astype(np.float32)
    return Audio(soxr.resample(sound, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)


def heard_in_chunks(model: Any, recording: Audio) -> str:
    """As `data_prep voice --whisper`."""
    length = len(recording.samples) * MASTER_RATE // SPEECH_RATE
    regions = vad.find_speech(vad.load_vad(), recording, length)
    master = Audio(soxr.resample(recording.samples, SPEECH_RATE, MASTER_RATE), MASTER_RATE)
    units = whisper_engine.transcribe_recording(
        model, recording, vad.make_windows(regions, master, LONGEST_WINDOW_S), "english", LONGEST_WINDOW_S
    )
    return "".join(unit.text for unit in units)


def heard_at_length(model: Any, recording: Audio) -> str:
    """As openai-whisper hears a long file: by itself, window after window, where its own times send it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = model.transcribe(
            recording.samples, language="en", fp16=False, temperature=0.0, condition_on_previous_text=False, verbose=None
        )
    return str(said["text"])


def heard_alone(model: Any, wave: Wave) -> tuple[str, float | None]:
    """The text of a sentence by itself, and its mean log-probability as data_prep's rule sees it; None if there is no text."""
    units = whisper_engine.transcribe_recording(model, one_recording([wave]), [vad.Region(0, len(wave) + MASTER_RATE)], "english")
    text = "".join(unit.text for unit in units)
    return text, min((unit.heard.avg_logprob for unit in units if unit.heard), default=None)


def ordinary_english() -> list[Wave]:
    """The embedded sample's sentences, said by a voice of the training: what the model cannot know."""
    slt = next(voice for voice in VOICES if voice.name == "slt")
    return [speak(slt, sentence) for recording in RECORDINGS for sentence in recording.sentences]


def plain(text: str) -> str:
    """The words as the grammar has them. Whisper's own normalisation would write its numbers in digits."""
    return " ".join(grammar.words_of(text))


def _percent(heard: Sequence[Heard], how: Literal["alone", "chunks", "long_form"]) -> float:
    import jiwer

    said = [plain(" ".join(one.texts)) for one in heard]
    understood = {"alone": lambda one: one.alone, "chunks": lambda one: one.chunks, "long_form": lambda one: one.long_form}[how]
    return round(100 * jiwer.wer(said, [plain(understood(one)) for one in heard]), 2)


def _sureness(values: list[float | None]) -> dict[str, float]:
    written = [value for value in values if value is not None]
    quantiles = {f"p{share}": round(float(np.percentile(written, share)), 3) for share in (3, 50, 97)} if written else {}
    return quantiles | {"kept_percent": round(100 * sum(value >= LEAST_SURE for value in written) / len(values), 1)}


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
