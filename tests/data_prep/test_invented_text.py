"""Sound without speech gives no text, even with a Whisper that always writes some.

The detector of speech is the first to stop it. Behind it each sign of an invented text is shown with a Whisper that gives that sign, on a
stretch of sound that is taken for speech by mistake.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from overtone.data_prep.clips.measurements import measure_clip, measure_noise_power
from overtone.data_prep.clips.quality_rules import PRESETS, Candidate, find_failures
from overtone.data_prep.segmentation import clip_segmentation, vad
from overtone.data_prep.segmentation.clip_segmentation import Lengths, TextUnit, WhisperScores
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import whisper_engine
from tests.ledger import record

TEXT = "The night train to the north leaves from platform seven."
LENGTH = 10 * MASTER_RATE
SECONDS = np.arange(LENGTH) / MASTER_RATE
SURE = WhisperScores(language="english", avg_logprob=-0.1, compression_ratio=1.2, no_speech_prob=0.0, temperature=0.0, complete=True)


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, LENGTH)


def pink() -> np.ndarray:
    return np.fft.irfft(np.fft.rfft(noise()) / np.sqrt(np.arange(LENGTH // 2 + 1) + 1)) * 30


def chords(decay: float) -> np.ndarray:
    """A chord a second, of notes with five harmonics: an organ if it does not decay, else a piano."""
    beat, within = SECONDS.astype(int), SECONDS % 1.0
    roots = np.asarray([220.0, 246.9, 196.0, 174.6])[beat % 4]
    notes = [np.sin(2 * np.pi * roots * third * harmonic * within) / harmonic for third in (1, 1.25, 1.5) for harmonic in range(1, 6)]
    return 0.1 * np.sum(notes, axis=0) * np.exp(-decay * within)


SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "silence": lambda: np.zeros(LENGTH),
    "a quiet room": lambda: 0.001 * noise(),
    "white noise": noise,
    "pink noise": pink,
    "an organ": lambda: chords(0),
    "a piano": lambda: chords(3),
    "mains hum": lambda: 0.2 * np.sign(np.sin(2 * np.pi * 50 * SECONDS)),
}


@pytest.fixture(scope="module")
def says(whisper_that_says):
    """(text) → a Whisper of its own that says it, to be spoilt."""
    return lambda text: whisper_engine.load_whisper(str(whisper_that_says(text)), "cpu")


@pytest.fixture(scope="module")
def eager(says):
    """It says the same sentence about any sound, and is sure of it."""
    return says(TEXT)


def hearing(master: Audio) -> Audio:
    return Audio(soxr.resample(master.samples, MASTER_RATE, SPEECH_RATE), SPEECH_RATE)


def clips_of(master: Audio, units: list[TextUnit], regions: list[Region]) -> dict[str, list[str]]:
    """The text of each clip, and what is wrong with it."""
    cuts = clip_segmentation.find_cuts(units, regions, len(master.samples), whisper_engine.WORD_TOLERANCE)
    pieces = clip_segmentation.choose_pieces(cuts, units, master, Lengths(), clip_segmentation.score_sentence_end)
    floor = measure_noise_power(master.samples, regions)
    measured = [(piece, measure_clip(master.samples, piece, regions, floor, "english")) for piece in pieces]
    candidates = [
        Candidate((piece.stop - piece.start) / MASTER_RATE, piece.text, "english", quality, Lengths()) for piece, quality in measured
    ]
    return {one.text: find_failures(one, PRESETS["default"]) for one in candidates}


@pytest.mark.parametrize("sound", SOUNDS)
def test_ten_seconds_without_speech_yield_no_text(sound, eager, vad) -> None:
    from overtone.data_prep.segmentation.vad import find_speech, make_windows

    master = Audio(SOUNDS[sound]().astype(np.float32), MASTER_RATE)
    regions = find_speech(vad, hearing(master), LENGTH)
    units = whisper_engine.transcribe_recording(eager, hearing(master), make_windows(regions, master), None)
    kept = {text: reasons for text, reasons in clips_of(master, units, regions).items() if text and not reasons}
    record("ten seconds of noise, music or silence yield no text from a Whisper that always says something", 1, len(kept))
    assert units == []


def test_the_same_text_on_real_speech_passes_all_rules(eager, vad, one_sentence) -> None:
    from overtone.data_prep.segmentation.vad import find_speech, make_windows

    regions = find_speech(vad, hearing(one_sentence), len(one_sentence.samples))
    units = whisper_engine.transcribe_recording(eager, hearing(one_sentence), make_windows(regions, one_sentence), None)
    assert clips_of(one_sentence, units, regions) == {TEXT: []}


def unsure(model) -> None:
    """It says the same, with a probability of about a tenth for each word."""
    model.decoder.ln.weight.data *= 0.15


def doubting(model) -> None:
    """At its first position it expects no speech."""
    no_speech = model.decoder.token_embedding.weight.data[50362]
    no_speech *= 2
    model.decoder.positional_embedding.data[0] = 10 * no_speech


TAKEN_FOR_SPEECH = Region(3 * MASTER_RATE, 7 * MASTER_RATE)


def heard_in_music(model, region: Region = TAKEN_FOR_SPEECH) -> tuple[list[str], list[TextUnit]]:
    """What is wrong with the only text, where the detector took a chord in a silent room for speech. That a chord has flatter peaks than
    speech (`flattened`) is left out: only the signs of an invented text are tested."""
    samples = chords(0) * ((region.start / MASTER_RATE <= SECONDS) & (region.stop / MASTER_RATE > SECONDS)) + 1e-4 * noise()
    master = Audio(samples.astype(np.float32), MASTER_RATE)
    units = whisper_engine.transcribe_recording(model, hearing(master), vad.make_windows([region], master), "english")
    (reasons,) = clips_of(master, units, [region]).values()
    return [reason for reason in reasons if reason != "flattened"], units


def test_a_looping_text_fails_both_repetition_rules(says) -> None:
    reasons, _ = heard_in_music(says("Thank you for watching. " * 8))
    assert {"looping_text", "repeated_text"} <= set(reasons)


def test_a_text_that_never_ends_is_unfinished(random_whisper) -> None:
    reasons, _ = heard_in_music(whisper_engine.load_whisper(str(random_whisper), "cpu"))
    assert "unfinished_text" in reasons


def test_a_text_with_low_probability_is_unsure(says) -> None:
    model = says(TEXT)
    unsure(model)
    reasons, _ = heard_in_music(model)
    assert set(reasons) - {"overlapped_speech"} == {"unsure_text"}, "the chords of the music are several voices at once"


def test_an_unsure_text_with_a_high_no_speech_probability_is_discarded(says) -> None:
    model = says(TEXT)
    doubting(model)
    assert len(heard_in_music(model)[1]) == len(TEXT.split()), "of its words it is sure"
    unsure(model)
    assert heard_in_music(model) == (["no_text"], [])


def test_many_words_in_a_short_noise_are_too_fast(eager) -> None:
    reasons, _ = heard_in_music(eager, Region(3 * MASTER_RATE, 3 * MASTER_RATE + MASTER_RATE))
    assert "too_fast" in reasons


def test_words_placed_in_a_pause_are_outside_speech(one_sentence) -> None:
    """Two sentences, a pause of 1.4 s between them, and a Whisper that fills it."""
    from overtone.data_prep.segmentation.vad import list_gaps

    speech = [Region(MASTER_RATE, 3 * MASTER_RATE), Region(round(4.4 * MASTER_RATE), 6 * MASTER_RATE)]
    samples = 1e-4 * noise() + sum(noise(index) * inside(region) for index, region in enumerate(speech))
    master = Audio(samples.astype(np.float32), MASTER_RATE)
    spoken = [*words("one two three four five six seven", speech[0]), *words("eight nine ten eleven twelve", speech[1])]
    assert list(clips_of(master, spoken, speech).values()) == [[]]
    pause = list_gaps(speech, LENGTH)[1]
    invented = sorted([*spoken, *words("thanks for watching", pause)], key=lambda unit: unit.start)
    assert ["words_outside_speech"] in clips_of(master, invented, speech).values()


def inside(region: Region) -> np.ndarray:
    return (np.arange(LENGTH) >= region.start) & (np.arange(LENGTH) < region.stop)


def words(text: str, region: Region) -> list[TextUnit]:
    """Spread evenly over a region."""
    edges = np.linspace(region.start, region.stop, len(text.split()) + 1).astype(int)
    return [TextUnit(text=f" {one}", start=start, stop=stop, heard=SURE) for one, start, stop in zip(text.split(), edges, edges[1:])]
