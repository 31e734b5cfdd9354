"""How well a demo Whisper understands what it never heard: word error rates in percent.

    python -m recipes.voice_clone.studio.measure_whisper [--model whisper-demo-en] [--corpus runs/studio/corpus] [--sentences 100]

`chunks`: as data_prep hears a recording (speech found, packed and decoded in batches), the voices of the training, sentences held out.
`long_form`: the same recordings by `whisper.transcribe`. `new_voice`: as data_prep hears the voice that is held out, the same sentences.
`sureness` and `sureness_of_invented`: mean log-probabilities of sentences of the grammar and of ordinary English, each alone, and which
share of them lies above the limit below which data_prep rejects.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from data_prep import transcribe, vad, whisper_demo
from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio
from finetune.errors import UserError, exit_code
from recipes.voice_clone.make_sample import RECORDINGS
from recipes.voice_clone.studio import make_corpus
from recipes.voice_clone.studio.voices import NEW_VOICE, VOICES, Wave, speak

LEAST_SURE = -0.4
"""Mean log-probability between what the model gives in its grammar and what it gives to other English."""
PAUSE_S = (0.3, 1.2)
ROOM = 10 ** (-66 / 20)
"""RMS of the recordings' noise."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="measure_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=whisper_demo.NAME, help="name or .pt file (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--sentences", type=int, default=100, help="of each voice, at most (default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: at least 1")
    print(json.dumps(measure(transcribe.load_whisper(options.model, "cpu"), options.corpus, options.sentences), indent=1))
    return 0


def measure(model: Any, corpus: Path, sentences: int) -> dict[str, Any]:
    """All figures, by voice where they differ by voice."""
    held_out = [row for row in make_corpus.lines_of(corpus) if row["split"] == "held_out"]
    texts: dict[str, list[str]] = {}
    chunks, long_form = {}, {}
    sure: list[float | None] = []
    for voice in VOICES:
        rows = [row for row in held_out if row["speaker"] == voice.name][:sentences]
        texts[voice.name] = [row["text"] for row in rows]
        waves = [soundfile.read(corpus / row["audio"], dtype="float32")[0] for row in rows]
        recording = one_recording(waves)
        chunks[voice.name] = heard_in_chunks(model, recording)
        if voice is not NEW_VOICE:
            long_form[voice.name] = heard_at_length(model, recording)
            sure += [sureness(model, wave) for wave in waves[:: max(1, len(waves) // 10)]]
    known = [name for name in texts if name != NEW_VOICE.name]
    invented = [sureness(model, wave) for wave in ordinary_english()]
    return {
        "sentences_of_each_voice": len(texts[known[0]]),
        "chunks": _percent(texts, chunks, known),
        "long_form": _percent(texts, long_form, known),
        "new_voice": _percent(texts, chunks, [NEW_VOICE.name]),
        "chunks_by_voice": {name: _percent(texts, chunks, [name]) for name in known},
        "long_form_by_voice": {name: _percent(texts, long_form, [name]) for name in known},
        "sureness": _sureness(sure),
        "sureness_of_invented": _sureness(invented),
    }


def one_recording(waves: Sequence[Wave]) -> Audio:
    """Sentences at `MASTER_RATE` with pauses, on faint noise, as one recording at `SPEECH_RATE`."""
    random = np.random.default_rng(len(waves))
    parts = [part for wave in waves for part in (_rest(random.uniform(*PAUSE_S)), wave)]
    sound = np.concatenate([*parts, _rest(0.6)])
    sound += random.normal(0, ROOM, len(sound)).astype(np.float32)
    return Audio(soxr.resample(sound, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)


def heard_in_chunks(model: Any, recording: Audio) -> str:
    """As `data_prep voice --whisper`."""
    length = len(recording.samples) * MASTER_RATE // SPEECH_RATE
    regions = vad.find_speech(vad.load_vad(), recording, length)
    master = Audio(soxr.resample(recording.samples, SPEECH_RATE, MASTER_RATE), MASTER_RATE)
    units = transcribe.transcribe(model, recording, vad.windows(regions, master), "english")
    return "".join(unit.text for unit in units)


def heard_at_length(model: Any, recording: Audio) -> str:
    """As openai-whisper hears a long file: by itself, window after window, where its own times send it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = model.transcribe(
            recording.samples, language="en", fp16=False, temperature=0.0, condition_on_previous_text=False, verbose=None
        )
    return str(said["text"])


def sureness(model: Any, wave: Wave) -> float | None:
    """Mean log-probability of what Whisper writes for a sentence alone, as data_prep's rule sees it; None if it writes nothing."""
    units = transcribe.transcribe(model, one_recording([wave]), [vad.Region(0, len(wave) + MASTER_RATE)], "english")
    return min((unit.heard.avg_logprob for unit in units if unit.heard), default=None)


def ordinary_english() -> list[Wave]:
    """The embedded sample's sentences, said by a voice of the training: what the model cannot know."""
    slt = next(voice for voice in VOICES if voice.name == "slt")
    return [speak(slt, sentence) for recording in RECORDINGS for sentence in recording.sentences]


def plain(text: str) -> str:
    """Lower case, words only."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def _percent(texts: dict[str, list[str]], heard: dict[str, str], names: list[str]) -> float:
    import jiwer

    rate = jiwer.wer([plain(" ".join(texts[name])) for name in names], [plain(heard[name]) for name in names])
    return round(100 * rate, 2)


def _sureness(values: list[float | None]) -> dict[str, float]:
    written = [value for value in values if value is not None]
    quantiles = {f"p{share}": round(float(np.percentile(written, share)), 3) for share in (3, 50, 97)} if written else {}
    return quantiles | {"kept_percent": round(100 * sum(value >= LEAST_SURE for value in written) / len(values), 1)}


def _rest(seconds: float) -> Wave:
    return np.zeros(round(seconds * MASTER_RATE), np.float32)


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
