"""Training windows of the demo Whisper: speech of the corpus with pauses, noise, reverberation and resampling, and their tokens.

A batch depends only on the seed and its number, so an interrupted training resumes with the same batches.
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
from whisper.audio import log_mel_spectrogram

from overtone.data_prep.audio.waveform import SPEECH_RATE as RATE
from workshop.demo_models.corpus.grammar import split_words
from workshop.demo_models.corpus.make_corpus import read_corpus
from workshop.demo_models.whisper.training_clips import Pcm, load_clips

Wave = NDArray[np.float32]

FRAME = 160
"""Samples per mel frame."""
TICK = 320
"""Samples per timestamp token, and per frame of the encoder."""
TICK_S = TICK / RATE
IGNORED = -100
SENTENCE_COUNT_SHARES = (0.25, 0.25, 0.5)
"""Shares of windows with one sentence, with a random number of sentences, and full of them."""
ONLY_NOISE, PLAIN, PLAIN_S = 0.04, 0.4, 10.0
"""Share of windows without speech; share of windows without timestamp tokens, as `data_prep` uses them; and their maximum of speech in
seconds: `data_prep` gives this model no more at a time, and without timestamps so small a decoder loses its place."""
ONE_VOICE = 0.7
"""Share of windows with one voice, as in recordings. With a new voice per sentence, the model would find sentences by the voice alone."""
CUT_OFF = 0.3
"""Probability that the end of the window cuts a sentence, if one more sentence does not fit."""
FIRST_PAUSE, PAUSES = (0.0, 1.4), ((0.1, 0.6), (0.3, 1.4))
"""Seconds before the first sentence, and between sentences: `transcribe` starts a window at the end of the last sentence, with the whole
pause."""
GAIN_DB = (-12.0, 5.0)
NOISY, NOISE_DB = 0.7, (-90.0, -46.0)
ROOM, ROOM_S, ROOM_SHARE = 0.15, (0.05, 0.3), (0.05, 0.35)
"""Share of windows with reverberation, its decay time constant, and its level relative to the direct sound."""
RESAMPLED_SHARE, RESAMPLING_FACTORS = 0.6, (0.85, 1.18)
"""Share of resampled sentences, and the range of the factor. Resampling shifts pitch and formants like another speaker, so that the model
generalizes to new voices."""
BAND_LOST, BAND = 0.4, 10
TILT = 0.12
"""Strength of slow variations of the mel spectrum, in Whisper's units of 80 dB / 2: simulates other microphones."""


@dataclass(frozen=True)
class TrainingSentence:
    """One sentence of the corpus."""

    voice: str
    sound: Pcm
    tokens: tuple[int, ...]
    spoken: tuple[float, ...]
    """The middle of each token as a share of the sentence, estimated from the number of letters."""
    phones: tuple[int, ...]
    """From 1; 0 is the blank of CTC."""


class PlacedSentence(NamedTuple):
    """A sentence in a window."""

    start: int
    stop: int
    sentence: TrainingSentence

    def find_places(self) -> list[float]:
        """Times of its tokens in seconds, estimated from the letters."""
        return [(self.start + share * (self.stop - self.start)) / RATE for share in self.sentence.spoken]


@dataclass
class SentenceSequence:
    """Sentences one after the other."""

    sound: Wave
    spoken: list[PlacedSentence] = field(default_factory=list)
    cut: int | None = None
    """Start of a last sentence that the end of the window cuts off."""


@dataclass(frozen=True)
class TrainingWindow:
    """A window of audio and its targets."""

    sound: Wave
    """As long as the window; silence after `filled`."""
    filled: int
    """Number of samples before the padding."""
    tokens: list[int]
    """After start-of-transcript, without end-of-text."""
    places: list[float]
    """Time of each token in the audio, in seconds; NaN for tokens without one."""
    phones: list[int]
    """Empty: no target for the phone head."""


@dataclass(frozen=True)
class WhisperBatch:
    """A batch of windows."""

    mels: torch.Tensor
    """[windows, 80, frames]."""
    inputs: torch.Tensor
    """[windows, positions]: token ids."""
    targets: torch.Tensor
    """[windows, positions]: token ids, `IGNORED` at padding."""
    places: torch.Tensor
    """[windows, positions]: time of each target in the audio, in seconds; NaN for targets without one."""
    phones: list[list[int]]


class WhisperDataset:
    """The training sentences of all voices, in memory at 16 kHz, and the codec reconstruction of every second one. Includes the new voice:
    so small a model does not generalize from six voices to a seventh (WER 36 %), while a real Whisper was trained on countless voices."""

    def __init__(self, corpus: Path, tokenizer: Any) -> None:
        rows = [row for row in read_corpus(corpus) if row["split"] == "train"]
        lexicon = json.loads((corpus / "lexicon.json").read_text(encoding="utf-8"))
        names = sorted({phone for word in lexicon.values() for phone in word})
        self.phone_ids = {name: number for number, name in enumerate(names, start=1)}
        self.tokenizer = tokenizer
        self.sentences = [
            TrainingSentence(
                voice=sound.row["speaker"],
                sound=sound.pcm,
                tokens=(tokens := tuple(tokenizer.encode(" " + sound.row["text"]))),
                spoken=_find_middles([len(tokenizer.decode([token])) for token in tokens]),
                phones=tuple(self.phone_ids[phone] for word in split_words(sound.row["text"]) for phone in lexicon[word]),
            )
            for sound in load_clips(corpus, rows)
        ]

    @cached_property
    def by_voice(self) -> list[list[TrainingSentence]]:
        """The sentences of each voice."""
        return [[one for one in self.sentences if one.voice == voice] for voice in sorted({one.voice for one in self.sentences})]

    @cached_property
    def text_tokens(self) -> list[int]:
        """All tokens of the texts, sorted."""
        return sorted({token for sentence in self.sentences for token in sentence.tokens})

    def batch(self, seed: int, number: int, seconds: float, windows: int) -> WhisperBatch:
        """Batch `number` of the training."""
        random = np.random.default_rng([seed, number])
        drawn = [self.window(seconds, random) for _ in range(windows)]
        longest = max(len(window.tokens) for window in drawn) + 1
        inputs = torch.full((windows, longest), self.tokenizer.eot)
        targets = torch.full((windows, longest), IGNORED)
        places = torch.full((windows, longest), torch.nan)
        for row, window in enumerate(drawn):
            inputs[row, : len(window.tokens) + 1] = torch.tensor([self.tokenizer.sot, *window.tokens])
            targets[row, : len(window.tokens) + 1] = torch.tensor([*window.tokens, self.tokenizer.eot])
            places[row, : len(window.tokens)] = torch.tensor(window.places)
        return WhisperBatch(_make_mels(drawn, random), inputs, targets, places, [window.phones for window in drawn])

    def window(self, seconds: float, random: Generator) -> TrainingWindow:
        """A window that is full of sentences, or has fewer, or none."""
        size = round(seconds * RATE)
        if random.random() < ONLY_NOISE:
            return TrainingWindow(_add_noise(np.zeros(size, np.float32), 1.0, random), size, [self.tokenizer.no_speech], [np.nan], [])
        plain = random.random() < PLAIN
        most = (1, int(random.integers(1, max(2, int(seconds / 2.5)))), 99)[random.choice(3, p=SENTENCE_COUNT_SHARES)]
        room, cut_off = (round(PLAIN_S * RATE), 0.0) if plain else (size, CUT_OFF)
        sequence = self._draw_sequence(size, min(size, room), most, cut_off, random)
        filled = size if sequence.cut is not None else min(size, sequence.spoken[-1].stop + int(random.uniform(0.02, 0.8) * RATE))
        sound = _add_reverberation(sequence.sound, random) if random.random() < ROOM else sequence.sound
        sound[filled:] = 0
        sound[:filled] = _add_noise(sound[:filled], NOISY, random)
        tokens, places = self._tokens_without_times(sequence) if plain else self._tokens_with_times(sequence)
        phones = [] if sequence.cut is not None else [phone for one in sequence.spoken for phone in one.sentence.phones]
        return TrainingWindow(sound, filled, tokens, places, phones)

    def _draw_sequence(self, size: int, room: int, most: int, cut_off: float, random: Generator) -> SentenceSequence:
        """`size` samples with up to `most` sentences and pauses in the first `room` of them. If the next sentence does not fit, its
        beginning is added with probability `cut_off`."""
        sequence = SentenceSequence(np.zeros(size, np.float32))
        candidates = self.by_voice[random.integers(len(self.by_voice))] if random.random() < ONE_VOICE else self.sentences
        position = int(random.uniform(*FIRST_PAUSE) * RATE)
        while len(sequence.spoken) < most:
            sentence = candidates[random.integers(len(candidates))]
            wave = _render_sentence(sentence, random)
            if not sequence.spoken and position + len(wave) > room:
                position = int(0.05 * RATE)
                if position + len(wave) > room:
                    continue
            if position + len(wave) > room:
                if position < room - RATE / 2 and random.random() < cut_off:
                    sequence.sound[position:room] = wave[: room - position]
                    sequence.cut = position
                break
            sequence.sound[position : position + len(wave)] = wave
            sequence.spoken.append(PlacedSentence(position, position + len(wave), sentence))
            position += len(wave) + int(random.uniform(*PAUSES[random.integers(len(PAUSES))]) * RATE)
        return sequence

    def _tokens_without_times(self, sequence: SentenceSequence) -> tuple[list[int], list[float]]:
        tokens = [self.tokenizer.no_timestamps, *(token for one in sequence.spoken for token in one.sentence.tokens)]
        return tokens, [np.nan, *(place for one in sequence.spoken for place in one.find_places())]

    def _tokens_with_times(self, sequence: SentenceSequence) -> tuple[list[int], list[float]]:
        """Each sentence between its timestamps. Of a cut sentence only the start, where `transcribe` continues."""
        tokens, places = list[int](), list[float]()
        for one in sequence.spoken:
            tokens += [self._time_token(one.start), *one.sentence.tokens, self._time_token(one.stop)]
            places += [one.start / RATE, *one.find_places(), one.stop / RATE]
        if sequence.cut is not None:
            tokens, places = [*tokens, self._time_token(sequence.cut)], [*places, sequence.cut / RATE]
        return tokens, places

    def _time_token(self, sample: int) -> int:
        return int(self.tokenizer.timestamp_begin) + round(sample / TICK)


def _find_middles(lengths: list[int]) -> tuple[float, ...]:
    ends = np.cumsum(lengths)
    return tuple(((ends - np.array(lengths) / 2) / ends[-1]).tolist())


def _render_sentence(sentence: TrainingSentence, random: Generator) -> Wave:
    wave = sentence.sound.astype(np.float32) / 32768
    if random.random() < RESAMPLED_SHARE:
        length = round(len(wave) / random.uniform(*RESAMPLING_FACTORS))
        wave = np.interp(np.linspace(0, len(wave) - 1, length), np.arange(len(wave)), wave).astype(np.float32)
    return (wave * 10 ** (random.uniform(*GAIN_DB) / 20)).astype(np.float32)


def _add_noise(sound: Wave, share: float, random: Generator) -> Wave:
    if random.random() >= share:
        return sound
    level = np.float32(10 ** (random.uniform(*NOISE_DB) / 20))
    return sound + level * random.standard_normal(len(sound), np.float32)


def _add_reverberation(sound: Wave, random: Generator) -> Wave:
    """The audio with a tail of decaying noise."""
    times = np.arange(int(0.4 * RATE)) / RATE
    echo = random.standard_normal(len(times)) * np.exp(-times / random.uniform(*ROOM_S))
    echo *= random.uniform(*ROOM_SHARE) / np.sqrt(np.square(echo).sum())
    echo[0] += 1
    size = 1 << (len(sound) + len(echo)).bit_length()
    return np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)[: len(sound)].astype(np.float32)


def _make_mels(windows: list[TrainingWindow], random: Generator) -> torch.Tensor:
    """Whisper's log mels, with random bands removed and random tilt. `decode` pads with silence, `transcribe` with 0; here the padding is
    either."""
    mels = compute_log_mels(torch.from_numpy(np.stack([window.sound for window in windows])))
    for mel, window in zip(mels, windows, strict=True):
        mel += torch.from_numpy(_draw_tilt(random))[:, None]
        if random.random() < BAND_LOST:
            low = int(random.integers(0, len(mel) - BAND))
            mel[low : low + int(random.integers(1, BAND))] = 0
        if random.random() < 0.5:
            mel[:, -(-window.filled // FRAME) :] = 0
    return mels


def compute_log_mels(waves: torch.Tensor) -> torch.Tensor:
    """[windows, samples] → [windows, 80, frames]: `whisper.log_mel_spectrogram`, each window normalized by its own maximum."""
    return torch.stack([log_mel_spectrogram(wave) for wave in waves])


def _draw_tilt(random: Generator) -> NDArray[np.float32]:
    bins = np.linspace(0, np.pi, 80)
    return np.sum([random.normal(0, TILT / wave) * np.cos(wave * bins) for wave in (1, 2, 3)], axis=0).astype(np.float32)
