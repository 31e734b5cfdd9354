"""Errors of `--diarize` and of the guests that `--speaker` rejects, in conversations of real people, with resemblyzer's vectors.

Conversations are prompts of two or three people with pauses of 0.3 s, one to three prompts a turn; each prompt is a clip. The limits were
chosen on the English and the Italian prompts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import soxr
from scipy.optimize import linear_sum_assignment

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples
from overtone.data_prep.segmentation import vad
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.encoder_selection import find_installed_encoder
from overtone.data_prep.speakers.voice_changes import assess_clip, label_windows
from overtone.data_prep.speakers.voice_clusters import VoiceCount
from overtone.data_prep.speakers.windowed_speaker_vectors import VoiceWindows, embed_windows, join_windows, read_windows
from workshop.benchmarks import _prompts, _table
from workshop.benchmarks._prompts import RATE

GROUPS = {
    "one person, limits chosen on": ("en", "it"),
    "one person": ("es", "fr", "ru", "slt", "rms", "awb"),
    "two people, limits chosen on": ("en it",),
    "two of the same sex": ("es fr", "fr ru", "es ru", "awb rms", "slt fr"),
    "two of different sex": ("it es", "it fr", "it ru", "rms slt", "awb fr", "rms ru"),
    "the same person in two languages": ("en es",),
    "three people": ("es fr ru", "it fr ru", "rms awb it"),
}
GUESTS = {
    "limits chosen on": ("en it", "it en"),
    "same sex": ("es fr", "fr es", "fr ru", "ru es"),
    "different sex": ("it ru", "ru it", "rms slt", "fr awb"),
}
"""The speaker, and a guest with a fifth of the turns."""
PROMPTS, SENTENCES = 150, 40
"""Prompts of each person, and sentences of each voice of flite."""
SHORTEST, LONGEST = 0.6, 12.0
SILENCE, PAUSE = RATE * 15 // 100, MASTER_RATE * 3 // 10
"""Samples before and after a prompt, in which speech detection finds its ends; between prompts of a conversation."""
COLUMNS = ("conversation", "prompts", "right number of names", "clips misnamed, %", "the same with --speakers, %")
NOTE = (
    "Each group has {count} conversations of each combination. A clip is misnamed if it has another name than the one that most clips of "
    "its speaker have, one name for each speaker. `slt`, `rms` and `awb` are voices of flite. In the lines of guests, who have a fifth "
    "of the turns, the number of names is right if there are two voices, the fourth column is the share of the speaker's clips that "
    "`guest_speaker` or `two_voices` rejects, and the last column the share of the guest's clips that are kept."
)


@dataclass(frozen=True)
class SpokenPrompt:
    """A prompt with the vectors of its windows."""

    length: int
    """Samples at `MASTER_RATE`."""
    windows: VoiceWindows


@dataclass(frozen=True)
class Conversation:
    """Prompts one after another."""

    clips: tuple[tuple[str, int, int], ...]
    """(speaker, start, stop) in samples at `MASTER_RATE`."""
    windows: VoiceWindows


def main() -> None:
    flags = _table.read_flags(__doc__)
    sys.path.append(str(Path(sys.prefix) / "similarity"))  # where `make` installs the speaker encoder of the tests
    if _prompts.is_missing():
        print(f"{_table.SKIPPED}needs recordings of known people: {_prompts.INSTALL}")
        return
    if find_installed_encoder() is None:
        print(f"{_table.SKIPPED}needs a speaker encoder: {resemblyzer_encoder.INSTALL}")
        return
    count = 1 if flags.quick else 4
    groups = {"two of different sex": ("it es",)} if flags.quick else GROUPS
    people = sorted(
        {name for group in (*groups.values(), *({} if flags.quick else GUESTS).values()) for names in group for name in names.split()}
    )
    spoken = {name: embed_prompts(name, 20 if flags.quick else SENTENCES if name in _prompts.FLITE else PROMPTS) for name in people}
    rows: list[list[object]] = []
    for name, group in groups.items():
        for clips in (20, 60):
            rows.append([f"{name}: {', '.join(group)}", clips, *measure_names(spoken, group, count, clips)])
    for name, group in ({} if flags.quick else GUESTS).items():
        rows.append([f"guest, {name}: {', '.join(group)}", 60, *measure_guests(spoken, group, count, 60)])
    _table.publish("speaker_names", flags, COLUMNS, rows, NOTE.format(count=count))


def embed_prompts(voice: str, count: int) -> list[SpokenPrompt]:
    encoder, detector = find_installed_encoder(), vad.load_vad()
    assert encoder is not None
    loaded, found = encoder.load(), []
    for wave in _prompts.read_voice(voice, SHORTEST, LONGEST)[:count]:
        speech = Audio(add_room(wave), SPEECH_RATE)
        master = Audio(np.asarray(soxr.resample(speech.samples, RATE, MASTER_RATE), np.float32), MASTER_RATE)
        regions = vad.find_speech(detector, speech, len(master.samples))
        found.append(SpokenPrompt(len(master.samples), read_windows(embed_windows(loaded, master, speech, regions))))
    return found


def add_room(wave: Samples) -> Samples:
    """The samples with silence around them, on the noise of a quiet room."""
    padded = np.pad(wave, (SILENCE, SILENCE))
    return padded + _prompts.make_noise(len(padded), 70, np.random.default_rng(0))


def make_conversation(
    spoken: dict[str, list[SpokenPrompt]],
    people: Sequence[str],
    clips: int,
    chance: np.random.Generator,
    shares: Sequence[float] | None = None,
) -> Conversation:
    """At least so many prompts, in turns of one to three; no prompt again before all prompts of its speaker."""
    left: dict[str, list[int]] = {name: [] for name in people}
    at, made, windows = 0, [], []
    while len(made) < clips:
        name = people[chance.choice(len(people), p=shares)]
        for _ in range(chance.integers(1, 4)):
            left[name] = left[name] or chance.permutation(len(spoken[name])).tolist()
            prompt = spoken[name][left[name].pop()]
            made.append((name, at, at + prompt.length))
            windows.append(prompt.windows.move(at))
            at += prompt.length + PAUSE
    return Conversation(tuple(made), join_windows(windows))


def list_conversations(
    spoken: dict[str, list[SpokenPrompt]], group: Sequence[str], count: int, clips: int, shares: Sequence[float] | None = None
) -> list[Conversation]:
    """`count` conversations of each combination of people."""
    return [
        make_conversation(spoken, names.split(), clips, np.random.default_rng([seed, *names.encode()]), shares)
        for names in group
        for seed in range(count)
    ]


def measure_names(spoken: dict[str, list[SpokenPrompt]], group: Sequence[str], count: int, clips: int) -> list[str]:
    """The last three columns of a line about names."""
    talks = list_conversations(spoken, group, count, clips)
    several = len(group[0].split())
    found = [count_misnamed(talk, None) for talk in talks]
    right = sum(names == several for names, _ in found)
    known = [count_misnamed(talk, VoiceCount(several, several))[1] for talk in talks] if several > 1 else []
    total = sum(len(talk.clips) for talk in talks)
    with_count = f"{100 * sum(known) / total:.1f}" if known else ""
    return [f"{right} of {len(talks)}", f"{100 * sum(wrong for _, wrong in found) / total:.1f}", with_count]


def count_misnamed(talk: Conversation, count: VoiceCount | None) -> tuple[int, int]:
    """(number of names, clips with a wrong one)."""
    labels = label_windows({"": talk.windows}, count)[""]
    people = sorted({name for name, _, _ in talk.clips})
    named = np.zeros((len(people), labels.max() + 1), int)
    for name, start, stop in talk.clips:
        voice = assess_clip(talk.windows, labels, start, stop)
        assert voice is not None
        named[people.index(name), voice.voice] += 1
    rows, columns = linear_sum_assignment(-named)
    return int((named.sum(axis=0) > 0).sum()), len(talk.clips) - int(named[rows, columns].sum())


def measure_guests(spoken: dict[str, list[SpokenPrompt]], group: Sequence[str], count: int, clips: int) -> list[str]:
    """The last three columns of a line about guests, as the rules `guest_speaker` and `two_voices` see them."""
    right, rejected, own, kept, others = 0, 0, 0, 0, 0
    for talk in list_conversations(spoken, group, count, clips, (0.8, 0.2)):
        labels = label_windows({"": talk.windows})[""]
        right += len(set(labels.tolist())) == 2
        speaker = max(
            {name for name, _, _ in talk.clips}, key=lambda name: sum(stop - start for who, start, stop in talk.clips if who == name)
        )
        for name, start, stop in talk.clips:
            found = assess_clip(talk.windows, labels, start, stop)
            assert found is not None
            is_kept = found.voice == 0 and found.other_share <= 0.05
            own, rejected = own + (name == speaker), rejected + (name == speaker and not is_kept)
            others, kept = others + (name != speaker), kept + (name != speaker and is_kept)
    return [f"{right} of {len(group) * count}", f"{100 * rejected / own:.1f}", f"{100 * kept / others:.1f}"]


if __name__ == "__main__":
    main()
