"""What the demo Whisper is trained on: windows of the corpus's speech with pauses, noise, rooms and other throats, and their tokens.

A batch is a function of the seed and its number, so a training that was stopped goes on with the batches that it would have had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from data_prep.audio.waveform import SPEECH_RATE as RATE
from recipes.voice_clone.studio.corpus.grammar import words_of
from recipes.voice_clone.studio.corpus.make_corpus import lines_of
from recipes.voice_clone.studio.whisper.training_audio import Pcm, sounds

Wave = NDArray[np.float32]

FRAME = 160
"""Samples of a mel frame."""
TICK = 320
"""Samples of a timestamp token, and of a frame of the encoder."""
TICK_S = TICK / RATE
IGNORED = -100
HOW_MANY = (0.25, 0.25, 0.5)
"""Shares of windows with one sentence, with any number of them, and full of them."""
ONLY_NOISE, PLAIN, PLAIN_S = 0.04, 0.4, 10.0
"""Shares of windows without speech, and of those without timestamp tokens, as `data_prep` asks; and of how many
seconds of speech at most: `data_prep` gives this model no more at a time. Without times so small a decoder does not find its way."""
ONE_VOICE = 0.7
"""How often all of a window is said by one voice, as in recordings. Where each sentence has another voice, that alone tells them apart."""
CUT_OFF = 0.3
"""How often the window's end falls into a sentence when one more does not fit."""
FIRST_PAUSE, PAUSES = (0.0, 1.4), ((0.1, 0.6), (0.3, 1.4))
"""Seconds before the first sentence and between two: `transcribe` begins a window where the last sentence stopped, with all of a pause."""
GAIN_DB = (-12.0, 5.0)
NOISY, NOISE_DB = 0.7, (-90.0, -46.0)
ROOM, ROOM_S, ROOM_SHARE = 0.15, (0.05, 0.3), (0.05, 0.35)
"""How often there is a room, its decay time constant, and its sound beside the direct one."""
OTHER_THROAT, THROATS = 0.6, (0.85, 1.18)
"""How often a sentence is resampled, which moves pitch and formants as another speaker does: so it follows voices that it never heard."""
BAND_LOST, BAND = 0.4, 10
TILT = 0.12
"""Of the mel spectrum's slow waves, in Whisper's units of 80 dB / 2: other microphones."""


@dataclass(frozen=True)
class Utterance:
    """One sentence of the corpus."""

    voice: str
    sound: Pcm
    tokens: tuple[int, ...]
    spoken: tuple[float, ...]
    """Of each token its middle, as a share of the sentence: by the letters before it."""
    phones: tuple[int, ...]
    """From 1; 0 is the blank of CTC."""


class Said(NamedTuple):
    """A sentence in a window."""

    start: int
    stop: int
    said: Utterance

    def places(self) -> list[float]:
        """Seconds of its tokens, as far as their letters tell."""
        return [(self.start + share * (self.stop - self.start)) / RATE for share in self.said.spoken]


@dataclass
class Row:
    """Sentences one after the other."""

    sound: Wave
    spoken: list[Said] = field(default_factory=list)
    cut: int | None = None
    """Where a last sentence starts that the window's end cuts off."""


@dataclass(frozen=True)
class Window:
    sound: Wave
    """As long as the window; silence after `filled`."""
    filled: int
    """Samples: what follows is padding."""
    tokens: list[int]
    """After the start of transcript, without the end of text."""
    places: list[float]
    """Of each token, where it is in the sound, in seconds; NaN for what is nowhere."""
    phones: list[int]
    """Empty: no target for the phone head."""


@dataclass(frozen=True)
class Batch:
    mels: torch.Tensor
    """[windows, 80, frames]."""
    inputs: torch.Tensor
    """[windows, positions]: token ids."""
    targets: torch.Tensor
    """[windows, positions]: token ids, `IGNORED` where there is none."""
    places: torch.Tensor
    """[windows, positions]: of each target, where it is in the sound, in seconds; NaN for what is nowhere."""
    phones: list[list[int]]


class Speech:
    """The training sentences of all voices, in memory at 16 kHz, and what the codec makes of every second one. The new voice is among them:
    from six so small a model does not learn how a seventh sounds (36 % of its words wrong), while a real Whisper has heard everybody."""

    def __init__(self, corpus: Path, tokenizer: Any) -> None:
        rows = [row for row in lines_of(corpus) if row["split"] == "train"]
        lexicon = json.loads((corpus / "lexicon.json").read_text(encoding="utf-8"))
        names = sorted({phone for word in lexicon.values() for phone in word})
        self.phone_ids = {name: number for number, name in enumerate(names, start=1)}
        self.tokenizer = tokenizer
        self.utterances = [
            Utterance(
                voice=sound.row["speaker"],
                sound=sound.pcm,
                tokens=(tokens := tuple(tokenizer.encode(" " + sound.row["text"]))),
                spoken=_middles([len(tokenizer.decode([token])) for token in tokens]),
                phones=tuple(self.phone_ids[phone] for word in words_of(sound.row["text"]) for phone in lexicon[word]),
            )
            for sound in sounds(corpus, rows)
        ]

    @cached_property
    def by_voice(self) -> list[list[Utterance]]:
        return [[one for one in self.utterances if one.voice == voice] for voice in sorted({one.voice for one in self.utterances})]

    @cached_property
    def text_tokens(self) -> list[int]:
        return sorted({token for utterance in self.utterances for token in utterance.tokens})

    def batch(self, seed: int, number: int, seconds: float, windows: int) -> Batch:
        """Batch `number` of the training."""
        random = np.random.default_rng([seed, number])
        made = [self.window(seconds, random) for _ in range(windows)]
        longest = max(len(window.tokens) for window in made) + 1
        inputs = torch.full((windows, longest), self.tokenizer.eot)
        targets = torch.full((windows, longest), IGNORED)
        places = torch.full((windows, longest), torch.nan)
        for row, window in enumerate(made):
            inputs[row, : len(window.tokens) + 1] = torch.tensor([self.tokenizer.sot, *window.tokens])
            targets[row, : len(window.tokens) + 1] = torch.tensor([*window.tokens, self.tokenizer.eot])
            places[row, : len(window.tokens)] = torch.tensor(window.places)
        return Batch(_mels(made, random), inputs, targets, places, [window.phones for window in made])

    def window(self, seconds: float, random: Generator) -> Window:
        """Sentences one after the other until the window is full, or fewer, or none."""
        size = round(seconds * RATE)
        if random.random() < ONLY_NOISE:
            return Window(_noisy(np.zeros(size, np.float32), 1.0, random), size, [self.tokenizer.no_speech], [np.nan], [])
        plain = random.random() < PLAIN
        most = (1, int(random.integers(1, max(2, int(seconds / 2.5)))), 99)[random.choice(3, p=HOW_MANY)]
        room, cut_off = (round(PLAIN_S * RATE), 0.0) if plain else (size, CUT_OFF)
        row = self._row(size, min(size, room), most, cut_off, random)
        filled = size if row.cut is not None else min(size, row.spoken[-1].stop + int(random.uniform(0.02, 0.8) * RATE))
        sound = _in_a_room(row.sound, random) if random.random() < ROOM else row.sound
        sound[filled:] = 0
        sound[:filled] = _noisy(sound[:filled], NOISY, random)
        tokens, places = self._plain(row) if plain else self._timed(row)
        phones = [] if row.cut is not None else [phone for one in row.spoken for phone in one.said.phones]
        return Window(sound, filled, tokens, places, phones)

    def _row(self, size: int, room: int, most: int, cut_off: float, random: Generator) -> Row:
        """`size` samples with up to `most` sentences and pauses in the first `room` of them; when the next sentence does not fit, its
        beginning with a probability of `cut_off`."""
        row = Row(np.zeros(size, np.float32))
        among = self.by_voice[random.integers(len(self.by_voice))] if random.random() < ONE_VOICE else self.utterances
        position = int(random.uniform(*FIRST_PAUSE) * RATE)
        while len(row.spoken) < most:
            said = among[random.integers(len(among))]
            wave = _said(said, random)
            if not row.spoken and position + len(wave) > room:
                position = int(0.05 * RATE)
                if position + len(wave) > room:
                    continue
            if position + len(wave) > room:
                if position < room - RATE / 2 and random.random() < cut_off:
                    row.sound[position:room] = wave[: room - position]
                    row.cut = position
                break
            row.sound[position : position + len(wave)] = wave
            row.spoken.append(Said(position, position + len(wave), said))
            position += len(wave) + int(random.uniform(*PAUSES[random.integers(len(PAUSES))]) * RATE)
        return row

    def _plain(self, row: Row) -> tuple[list[int], list[float]]:
        tokens = [self.tokenizer.no_timestamps, *(token for one in row.spoken for token in one.said.tokens)]
        return tokens, [np.nan, *(place for one in row.spoken for place in one.places())]

    def _timed(self, row: Row) -> tuple[list[int], list[float]]:
        """Each sentence between its times; of one that is cut off only when it starts, which is where `transcribe` goes on."""
        tokens, places = list[int](), list[float]()
        for one in row.spoken:
            tokens += [self._time(one.start), *one.said.tokens, self._time(one.stop)]
            places += [one.start / RATE, *one.places(), one.stop / RATE]
        if row.cut is not None:
            tokens, places = [*tokens, self._time(row.cut)], [*places, row.cut / RATE]
        return tokens, places

    def _time(self, sample: int) -> int:
        return int(self.tokenizer.timestamp_begin) + round(sample / TICK)


def _middles(lengths: list[int]) -> tuple[float, ...]:
    ends = np.cumsum(lengths)
    return tuple(((ends - np.array(lengths) / 2) / ends[-1]).tolist())


def _said(utterance: Utterance, random: Generator) -> Wave:
    wave = utterance.sound.astype(np.float32) / 32768
    if random.random() < OTHER_THROAT:
        length = round(len(wave) / random.uniform(*THROATS))
        wave = np.interp(np.linspace(0, len(wave) - 1, length), np.arange(len(wave)), wave).astype(np.float32)
    return (wave * 10 ** (random.uniform(*GAIN_DB) / 20)).astype(np.float32)


def _noisy(sound: Wave, share: float, random: Generator) -> Wave:
    if random.random() >= share:
        return sound
    level = np.float32(10 ** (random.uniform(*NOISE_DB) / 20))
    return sound + level * random.standard_normal(len(sound), np.float32)


def _in_a_room(sound: Wave, random: Generator) -> Wave:
    """The sound with a tail of decaying noise: an echo without a direction."""
    times = np.arange(int(0.4 * RATE)) / RATE
    echo = random.standard_normal(len(times)) * np.exp(-times / random.uniform(*ROOM_S))
    echo *= random.uniform(*ROOM_SHARE) / np.sqrt(np.square(echo).sum())
    echo[0] += 1
    size = 1 << (len(sound) + len(echo)).bit_length()
    return np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)[: len(sound)].astype(np.float32)


def _mels(windows: list[Window], random: Generator) -> torch.Tensor:
    """Log mel as Whisper's, then some of it lost or bent. What follows the content is silence to `decode`, and 0 to `transcribe`."""
    mels = log_mels(torch.from_numpy(np.stack([window.sound for window in windows])))
    for mel, window in zip(mels, windows, strict=True):
        mel += torch.from_numpy(_tilt(random))[:, None]
        if random.random() < BAND_LOST:
            low = int(random.integers(0, len(mel) - BAND))
            mel[low : low + int(random.integers(1, BAND))] = 0
        if random.random() < 0.5:
            mel[:, -(-window.filled // FRAME) :] = 0
    return mels


def log_mels(waves: torch.Tensor) -> torch.Tensor:
    """[windows, samples] to [windows, 80, frames]: `whisper.log_mel_spectrogram`, each window by its own loudest point."""
    from whisper.audio import log_mel_spectrogram

    return torch.stack([log_mel_spectrogram(wave) for wave in waves])


def _tilt(random: Generator) -> NDArray[np.float32]:
    bins = np.linspace(0, np.pi, 80)
    return np.sum([random.normal(0, TILT / wave) * np.cos(wave * bins) for wave in (1, 2, 3)], axis=0).astype(np.float32)
