"""Measure a demo Whisper on held-out sentences: word error rates in percent.

    python -m workshop.demo_models.whisper.measure_whisper [--model whisper-demo-en]
        [--corpus runs/studio/corpus] [--sentences 100]

`alone`: each held-out sentence separately. `chunks`: all sentences of a voice in one recording, transcribed as in data_prep: speech is
detected, packed into windows of up to 9 s and decoded in batches. `long_form`: the same recordings with `whisper.transcribe`. These three
are for the voices that the base learns; `new_voice_alone` and `new_voice` are `alone` and `chunks` for the demo's new voice. `sureness` and
`sureness_of_invented`: mean log-probabilities of single sentences of the grammar and of ordinary English, and the share of them above the
limit below which data_prep rejects.
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

import jiwer
import numpy as np
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from overtone.data_prep.segmentation import vad
from overtone.data_prep.transcription import demo_whisper, whisper_engine
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import grammar, make_corpus
from workshop.demo_models.corpus.make_sample_recordings import RECORDINGS
from workshop.demo_models.corpus.voices import NEW_VOICE, VOICES, Wave, make_silence, speak

LEAST_SURE = -0.1
"""A mean log-probability between those of the model for its grammar and those for other English."""
LONGEST_WINDOW_S = 9.0
"""Length of the windows that data_prep packs for this model: two or three sentences. The WER is higher with other lengths: 7 s cut more
sentences, and without timestamps the model was not trained on more than 10 s."""
PAUSE_S = (0.3, 1.2)
ROOM = 10 ** (-66 / 20)
"""RMS of the noise in the recordings."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="measure_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", default=demo_whisper.NAME, help="name or .pt file (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--sentences", type=int, default=100, help="sentences per voice, at most (default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: must be at least 1")
    print_line(json.dumps(measure_whisper(whisper_engine.load_whisper(options.model, "cpu"), options.corpus, options.sentences), indent=1))
    return 0


def measure_whisper(model: Any, corpus: Path, sentences: int) -> dict[str, Any]:
    """All figures, per voice where they differ by voice."""
    held_out = [row for row in make_corpus.read_corpus(corpus) if row["split"] == "held_out"]
    transcripts = {
        voice.name: _transcribe_voice(model, corpus, [row for row in held_out if row["speaker"] == voice.name][:sentences])
        for voice in VOICES
    }
    new, known = transcripts[NEW_VOICE.name], [one for name, one in transcripts.items() if name != NEW_VOICE.name]
    return {
        "sentences_of_each_voice": len(new.texts),
        "alone": _compute_wer_percent(known, "alone"),
        "chunks": _compute_wer_percent(known, "chunks"),
        "long_form": _compute_wer_percent(known, "long_form"),
        "new_voice_alone": _compute_wer_percent([new], "alone"),
        "new_voice": _compute_wer_percent([new], "chunks"),
        "by_voice": {
            name: {how: _compute_wer_percent([one], how) for how in ("alone", "chunks", "long_form")} for name, one in transcripts.items()
        },
        "sureness": _summarize_log_probabilities([sure for one in known for sure in one.sure]),
        "sureness_of_invented": _summarize_log_probabilities([transcribe_alone(model, wave)[1] for wave in speak_ordinary_english()]),
    }


@dataclass(frozen=True)
class VoiceTranscripts:
    """The texts of one voice, and their transcripts by each method."""

    texts: list[str]
    alone: str
    chunks: str
    long_form: str
    sure: list[float | None]
    """Mean log-probability of each single sentence."""


def _transcribe_voice(model: Any, corpus: Path, rows: list[dict[str, Any]]) -> VoiceTranscripts:
    waves = [soundfile.read(corpus / row["audio"], dtype="float32")[0] for row in rows]
    recording = join_recording(waves)
    alone = [transcribe_alone(model, wave) for wave in waves]
    return VoiceTranscripts(
        texts=[row["text"] for row in rows],
        alone=" ".join(text for text, _ in alone),
        chunks=transcribe_chunks(model, recording),
        long_form=transcribe_long_form(model, recording),
        sure=[sure for _, sure in alone],
    )


def join_recording(waves: Sequence[Wave]) -> Audio:
    """Sentences at `MASTER_RATE` with pauses, on faint noise, as one recording at `SPEECH_RATE`."""
    random = np.random.default_rng(len(waves))
    parts = [part for wave in waves for part in (make_silence(random.uniform(*PAUSE_S)), wave)]
    sound = np.concatenate([*parts, make_silence(0.6)])
    sound += random.normal(0, ROOM, len(sound)).astype(np.float32)
    return Audio(soxr.resample(sound, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)


def transcribe_chunks(model: Any, recording: Audio) -> str:
    """Transcribe like `overtone voice --whisper`."""
    length = len(recording.samples) * MASTER_RATE // SPEECH_RATE
    regions = vad.find_speech(vad.load_vad(), recording, length)
    master = Audio(soxr.resample(recording.samples, SPEECH_RATE, MASTER_RATE), MASTER_RATE)
    units = whisper_engine.transcribe_recording(
        model, recording, vad.make_windows(regions, master, LONGEST_WINDOW_S), "english", LONGEST_WINDOW_S
    )
    return "".join(unit.text for unit in units)


def transcribe_long_form(model: Any, recording: Audio) -> str:
    """Transcribe like openai-whisper: window after window, each starting where its own timestamps end the previous one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = model.transcribe(
            recording.samples, language="en", fp16=False, temperature=0.0, condition_on_previous_text=False, verbose=None
        )
    return str(result["text"])


def transcribe_alone(model: Any, wave: Wave) -> tuple[str, float | None]:
    """The transcript of a single sentence, and its mean log-probability as in data_prep's rule; None if there is no text."""
    units = whisper_engine.transcribe_recording(model, join_recording([wave]), [vad.Region(0, len(wave) + MASTER_RATE)], "english")
    text = "".join(unit.text for unit in units)
    return text, min((unit.heard.avg_logprob for unit in units if unit.heard), default=None)


def speak_ordinary_english() -> list[Wave]:
    """The sentences of the embedded sample in a voice of the training: text that is not in the grammar."""
    slt = next(voice for voice in VOICES if voice.name == "slt")
    return [speak(slt, sentence) for recording in RECORDINGS for sentence in recording.sentences]


def normalize_text(text: str) -> str:
    """The words as in the grammar. Whisper's own normalization would write its numbers in digits."""
    return " ".join(grammar.split_words(text))


def _compute_wer_percent(transcripts: Sequence[VoiceTranscripts], how: Literal["alone", "chunks", "long_form"]) -> float:
    references = [normalize_text(" ".join(one.texts)) for one in transcripts]
    select = {"alone": lambda one: one.alone, "chunks": lambda one: one.chunks, "long_form": lambda one: one.long_form}[how]
    return round(100 * jiwer.wer(references, [normalize_text(select(one)) for one in transcripts]), 2)


def _summarize_log_probabilities(values: list[float | None]) -> dict[str, float]:
    present = [value for value in values if value is not None]
    quantiles = {f"p{share}": round(float(np.percentile(present, share)), 3) for share in (3, 50, 97)} if present else {}
    return quantiles | {"kept_percent": round(100 * sum(value >= LEAST_SURE for value in present) / len(values), 1)}


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
