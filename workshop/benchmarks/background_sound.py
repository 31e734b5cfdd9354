"""Clean clips that the rules on the sound reject, and noisy ones that they find, for real voices of five languages.

The voices are Debian's telephone prompts: asterisk-core-sounds-en-g722, -es-g722, -fr-g722, -it-g722 and -ru-g722, and the same with -wav
for 8 kHz. The limits were chosen with the first two; noise and music are made here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import soundfile
import soxr

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.cli import voice
from overtone.data_prep.clips import dnsmos
from overtone.data_prep.clips.quality_rules import AUDIO_RULES
from overtone.finetune.storage import demo_models, files
from tests.data_prep.telephone_prompts import FIVE_VOICES, RATE, has_prompts, list_prompts
from workshop.benchmarks import _table

SAMPLE = demo_models.data_folder() / "sample"
SAMPLES = {"rms": SAMPLE / "rms" / "railway.ogg", "slt": SAMPLE / "slt" / "harbour.flac"}
"""Two synthetic voices, where the prompts are not installed."""
LEVEL, ROOM = 0.06, 10 ** (-75 / 20)
PAUSE = RATE * 6 // 10
CLEAN_CLIPS, NARROW_CLIPS, NOISY_CLIPS = 40, 12, 5
LOUD, FAINT = 10, 40
OF_NOISE = {"background_sound", "noisy"}
ALONE = "the rating of the background alone"
COLUMNS = ("recording", "clips rejected by")
NOTE = (
    "Rejected clips of all clips of a voice. Every recording has pauses of 0.6 s and the noise of a room 75 dB below full scale. Noise "
    "is in the whole recording, at this level below the speech. The limits were chosen with en and fr. A clip counts for every rule that "
    "rejects it."
)
UNRATED = " speechmos is not installed, so background_sound and poor_sound reject nothing."
Noise = Callable[[int, str], Samples]


def main() -> None:
    flags = _table.read_flags(__doc__)
    os.environ["OMP_NUM_THREADS"] = "1"
    voices = [one for one in FIVE_VOICES if has_prompts(one) and has_prompts(one, "wav")]
    voices = voices or list(SAMPLES)
    clean, few, noisy = (5, 3, 3) if flags.quick else (CLEAN_CLIPS, NARROW_CLIPS, NOISY_CLIPS)
    rows = list_clean_rows("clean, 16 kHz", [judge(one, "g722", clean, lambda wave, _: wave) for one in voices])
    narrow = [judge(one, "wav", few, lambda wave, _: soxr.resample(wave, RATE, 8000)) for one in voices]
    rows += list_clean_rows("clean, 8 kHz", narrow)
    coded = [judge(one, "g722", noisy, lambda wave, _: wave, "MP3") for one in voices]
    rows.append(describe("clean, MP3", "background_sound or noisy", coded, OF_NOISE))
    pair = [judge(one, "g722", 2, lambda wave, _: wave) for one in voices]
    rows.append(describe("clean, two clips", "background_sound or noisy", pair, OF_NOISE))
    for name, make in list(NOISES.items())[: 1 if flags.quick else None]:
        for ratio in (FAINT, LOUD):
            found = [judge(one, "g722", noisy, lambda wave, who, make=make, ratio=ratio: add(wave, make, who, ratio)) for one in voices]
            rows.append(describe(f"{name}, {ratio} dB below", "background_sound", found, {"background_sound"}))
            rows.append(describe("", "background_sound or noisy", found, OF_NOISE))
    _table.publish("background_sound", flags, (*COLUMNS, *voices), rows, NOTE + (UNRATED if dnsmos.find_scorer() is None else ""))


def list_clean_rows(name: str, found: Sequence[list[set[str]]]) -> list[list[str]]:
    """One row for each rule on the sound that rejects a clip, one for the others, and one for `ALONE`."""
    reasons = [rule.reason for rule in AUDIO_RULES]
    failed = [reason for reason in reasons if any(reason in one for clips in found for one in clips)]
    shown = list(dict.fromkeys(["background_sound", *failed]))
    rows = [describe(name if reason == shown[0] else "", reason, found, {reason}) for reason in shown]
    others = describe("", "any other rule on the sound", found, set(reasons) - set(shown))
    return [*rows, others, describe("", ALONE, found, {ALONE})]


def describe(name: str, rule: str, found: Sequence[list[set[str]]], reasons: set[str]) -> list[str]:
    """A row: of each voice, how many clips have one of `reasons`."""
    cells = [f"{sum(bool(one & reasons) for one in clips)} of {len(clips)}" for clips in found]
    return [name, rule, *cells]


def judge(who: str, form: str, count: int, change: Callable[[Samples, str], Samples], coding: str = "") -> list[set[str]]:
    """The reasons for which each clip is rejected, in one recording of prompts that is changed as a whole."""
    pieces, cues, at = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
    for text, wave in read_speech(who, form, count):
        cues.append({"start": at / RATE, "end": (at + len(wave)) / RATE, "text": text})
        pieces += [wave, np.zeros(PAUSE, np.float32)]
        at += len(wave) + PAUSE
    room = ROOM * np.random.default_rng(0).standard_normal(at)
    changed = change((np.concatenate(pieces) + room).astype(np.float32), who)
    rate = RATE * len(changed) // at
    with tempfile.TemporaryDirectory() as folder:
        recordings = Path(folder) / "in"
        recordings.mkdir()
        soundfile.write(recordings / ("talk.mp3" if coding else "talk.wav"), changed, rate, subtype=None if coding else "FLOAT")
        files.write_json(recordings / "talk.json", cues)
        return prepare(recordings, Path(folder) / "out")


def prepare(recordings: Path, out: Path) -> list[set[str]]:
    """The reasons of all clips of a dataset with the default rules, and `ALONE` if the rating of the background is below its limit."""
    options = ["--transcripts", "--workers", "0", "--speaker", "me", "--speaker-check", "none"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        voice.main([str(recordings), "--out", str(out), *options])
    rows = [out / name for name in ("train.jsonl", "val.jsonl", "rejects.jsonl")]
    clips = [json.loads(line) for path in rows if path.is_file() for line in path.read_text(encoding="utf-8").split("\n") if line]
    limit = next(rule.least for rule in AUDIO_RULES if rule.reason == "background_sound")
    found = [
        {*clip.get("reasons", []), *[ALONE] * (clip["quality"].get("mos_background", limit) < limit)} for clip in clips if clip.get("audio")
    ]
    if not found:
        raise RuntimeError(f"no clips: {printed.getvalue()}")
    return found


def read_speech(who: str, form: str, count: int) -> list[tuple[str, Samples]]:
    """Text and samples [n] at 16 kHz of prompts of 1.3 to 8 s, each at the same level, of the half that no limit was chosen with."""
    if who in SAMPLES:
        path = SAMPLES[who]
        sound, rate = soundfile.read(path, dtype="float32")
        whole = soxr.resample(sound if sound.ndim == 1 else sound.mean(axis=1), rate, RATE)
        cues = json.loads(path.with_name(f"{path.stem}.transcript.json").read_text(encoding="utf-8"))[:count]
        found = [(cue["text"], whole[int(cue["start"] * RATE) : int(cue["end"] * RATE)]) for cue in cues]
    else:
        prompts = [prompt for prompt in list_prompts(who, "reported", form) if 1.3 <= prompt.seconds <= 8][:count]
        found = [(prompt.text, prompt.samples) for prompt in prompts]
    return [(text, wave * np.float32(LEVEL / np.sqrt(np.mean(np.square(wave))))) for text, wave in found]


def add(wave: Samples, make: Noise, who: str, ratio: int) -> Samples:
    """The recording with noise `ratio` dB below the speech."""
    noise = make(len(wave), who)
    return (wave + noise * (LEVEL * 10 ** (-ratio / 20) / np.sqrt(np.mean(np.square(noise))))).astype(np.float32)


def make_colored(length: int, slope: float) -> Samples:
    """Noise whose power falls with the frequency to the power of `slope`."""
    spectrum = np.fft.rfft(np.random.default_rng(int(slope)).standard_normal(length))
    hertz = np.maximum(np.fft.rfftfreq(length, 1 / RATE), 40)
    return np.fft.irfft(spectrum * hertz ** (-slope / 2), length)


def make_hum(length: int) -> Samples:
    """Harmonics of 50 Hz."""
    time = np.arange(length) / RATE
    return np.sum([np.sin(2 * np.pi * 50 * number * time + number) / number**0.7 for number in range(1, 16)], axis=0)


def make_music(length: int) -> Samples:
    """Chords with a beat."""
    time, beat = np.arange(length) / RATE, np.arange(length) % (RATE // 2) / RATE
    notes = np.array([(220, 277, 330), (196, 247, 294), (175, 220, 262), (165, 208, 247)])[time.astype(int) % 4]
    tones = np.sum([np.sin(2 * np.pi * notes[:, note] * over * time) / over for note in range(3) for over in range(1, 6)], axis=0)
    drum = np.random.default_rng(0).standard_normal(length) * np.exp(-60 * beat)
    return tones * np.exp(-3 * beat) + 0.8 * drum


def make_babble(length: int, who: str) -> Samples:
    """Six streams of the speech of other voices."""
    others = [one for one in (SAMPLES if who in SAMPLES else FIVE_VOICES) if one != who]
    total = np.zeros(length)
    for number in range(6):
        speech = np.concatenate([wave for _, wave in read_speech(others[number % len(others)], "g722", 30)])
        total += np.roll(np.resize(speech, length), number * 7001)
    return total


NOISES: dict[str, Noise] = {
    "white noise": lambda length, _: make_colored(length, 0),
    "pink noise": lambda length, _: make_colored(length, 1),
    "a fan (low noise)": lambda length, _: make_colored(length, 2),
    "hum": lambda length, _: make_hum(length),
    "music": lambda length, _: make_music(length),
    "babble": make_babble,
}


if __name__ == "__main__":
    main()
