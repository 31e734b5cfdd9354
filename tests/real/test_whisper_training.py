"""tiny.en learns the words and the speaker of telephone prompts, and still understands another speaker.

Half of the prompts are trained, the other half measured; the names of the files decide. The other speaker reads Sense and Sensibility for
LibriVox: apt-get install pocketsphinx-testdata.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.exporting.export import export
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts, align_words, count_errors
from overtone.recipes.whisper.inference.clip_transcription import Clip, load_model, transcribe_clips
from overtone.recipes.whisper.model.sequence_layout import compute_features, read_clip
from tests.data_prep.telephone_prompts import RATE, Prompt, list_prompts
from tests.real.build_models import ROOT

pytestmark = pytest.mark.slow
LIBRIVOX = Path("/usr/share/pocketsphinx/test/data/librivox")
NAMES = ("asterisk", "digium", "iax", "pbx", "sip", "voicemail", "comedian")
"""Words of the prompts that are rare in other speech."""
SETTINGS = {
    **{"train.epochs": "3", "train.lr": "3e-5", "train.micro_tokens": "8", "train.precision": "fp32", "options.freeze_encoder": "true"},
    **{"eval.at_start": "false", "log.trackers": "[]"},
}


@dataclass(frozen=True)
class Spoken:
    """A clip with its words."""

    path: Path
    text: str


@dataclass(frozen=True)
class Result:
    """Transcripts of clips."""

    clips: list[Spoken]
    transcripts: list[str]

    @property
    def errors(self) -> list[ErrorCounts]:
        pairs = zip(self.clips, self.transcripts, strict=True)
        return [found for clip, text in pairs if (found := count_errors(clip.text, text, "english"))]

    @property
    def wer(self) -> float:
        """In %."""
        return 100 * sum(one.wrong_words for one in self.errors) / sum(one.words for one in self.errors)

    def count_words(self, chosen: set[str]) -> tuple[int, int]:
        """How often words of `chosen` are spoken, and how often they are transcribed."""
        words = [word for clip, text in zip(self.clips, self.transcripts, strict=True) for word in align_words(clip.text, text, "english")]
        spoken = [word for word in words if word.expected in chosen]
        return len(spoken), sum(not word.wrong for word in spoken)


def write_prompts(folder: Path, prompts: list[Prompt]) -> list[Spoken]:
    folder.mkdir()
    clips = []
    for prompt in prompts:
        if len(prompt.samples) <= 30 * RATE:
            clips.append(Spoken(folder / f"{prompt.name.replace('/', '-')}.flac", prompt.text))
            soundfile.write(clips[-1].path, prompt.samples, RATE)
    rows = [json.dumps({"audio": clip.path.name, "text": clip.text, "language": "english"}) + "\n" for clip in clips]
    (folder / "rows.jsonl").write_text("".join(rows))
    return clips


def read_librivox() -> list[Spoken]:
    """The five sentences of the package."""
    lines = (LIBRIVOX / "transcription").read_text().splitlines()
    parsed = [re.fullmatch(r"<s> (.*) </s> \((.*)\)", line.strip()) for line in lines]
    return [Spoken(LIBRIVOX / f"{found[2]}.wav", found[1]) for found in parsed if found]


def transcribe(folder: Path, clips: list[Spoken]) -> Result:
    model = load_model(folder)
    return Result(clips, transcribe_clips(model, [Clip(compute_features(read_clip(clip.path), 80), "en", "transcribe") for clip in clips]))


def list_words(clips: list[Spoken]) -> set[str]:
    return {word.expected for clip in clips for word in align_words(clip.text, "", "english")}


def measure_gain(before: Result, after: Result) -> tuple[float, float]:
    """The 95 % interval of the difference of the WER in %, by a bootstrap over the clips."""
    wrong = np.array([[one.wrong_words for one in result.errors] for result in (before, after)])
    words = np.array([one.words for one in before.errors])
    picks = np.random.default_rng(0).integers(0, len(words), (5000, len(words)))
    gains = 100 * (wrong[0][picks].sum(1) - wrong[1][picks].sum(1)) / words[picks].sum(1)
    return float(np.quantile(gains, 0.025)), float(np.quantile(gains, 0.975))


@pytest.mark.timeout(3600)
def test_a_recognizer_learns_the_words_of_a_speaker(whisper_base: Path, prompts: list[Prompt], figures: list[str], tmp_path: Path) -> None:
    assert prompts, "the package is installed"
    trained = write_prompts(tmp_path / "train", list_prompts("en", "tuned"))
    held_out = write_prompts(tmp_path / "held-out", list_prompts("en", "reported"))
    places = {"model.source": whisper_base, "data.train": tmp_path / "train" / "rows.jsonl", "run.dir": tmp_path / "run"}
    words = [word for key, value in {**places, **SETTINGS}.items() for word in (f"--{key}", str(value))]
    subprocess.run([sys.executable, "-m", "overtone", "train", "--recipe", "whisper", *words], cwd=ROOT, check=True)
    tuned = export(tmp_path / "run", tmp_path / "export")
    before, after = (transcribe(folder, held_out) for folder in (whisper_base, tuned))
    low, high = measure_gain(before, after)
    known = list_words(trained)
    figures.append(
        f"tiny.en, {len(trained)} prompts trained, {len(held_out)} held out: WER {before.wer:.1f} % → {after.wer:.1f} %, "
        f"{low:.1f} to {high:.1f} points better (95 %)"
    )
    for name, chosen in (("names", {*NAMES}), ("words that no trained prompt has", list_words(held_out) - known)):
        (spoken, right), (_, now) = before.count_words(chosen), after.count_words(chosen)
        figures.append(f"{name}: {right} → {now} of {spoken} right")
    assert low > 0, "the held-out prompts are transcribed better"
    if LIBRIVOX.is_dir():
        other = read_librivox()
        was, now_is = (transcribe(folder, other) for folder in (whisper_base, tuned))
        figures.append(f"another speaker, {len(other)} sentences of LibriVox: WER {was.wer:.1f} % → {now_is.wer:.1f} %")
        assert now_is.wer <= was.wer + 5
