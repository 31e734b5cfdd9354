"""Measures on sound with known answers, and every rule with a clip that passes and one that fails."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.audio import MASTER_RATE
from data_prep.score import RULES, Candidate, Quality, failures, measure, noise_power
from data_prep.segment import Heard, Lengths, Piece, Unit
from data_prep.vad import Region

SECOND = MASTER_RATE
REGION = Region(SECOND, 3 * SECOND)


def recording(noise: float = 0.001, speech: float = 0.1) -> np.ndarray:
    generator = np.random.default_rng(0)
    samples = generator.normal(0, noise, 4 * SECOND)
    samples[REGION.start : REGION.stop] += generator.normal(0, speech, REGION.stop - REGION.start)
    return samples.astype(np.float32)


def piece(text: str = "x" * 20, start: float = 0.9, stop: float = 3.2, heard: tuple[Heard, ...] = ()) -> Piece:
    units = [Unit(text=text, start=0, stop=1)] if not heard else [Unit(text=text, start=0, stop=1, heard=one) for one in heard]
    return Piece(int(start * SECOND), int(stop * SECOND), tuple(units))


def test_measures_of_a_recording_with_known_levels() -> None:
    samples = recording()
    quality = measure(samples, piece(), [REGION], noise_power(samples, [REGION]))
    assert quality.chars_per_second == 10
    assert quality.speech_share == pytest.approx(2 / 2.3, abs=0.001)
    assert quality.snr_db == pytest.approx(40, abs=0.5)
    assert quality.edge_energy_db == (pytest.approx(-40, abs=1), pytest.approx(-40, abs=1))
    assert quality.peak_dbfs == pytest.approx(20 * np.log10(np.abs(samples[int(0.9 * SECOND) : int(3.2 * SECOND)]).max()), abs=0.1)
    assert quality.clipped_share == 0
    assert quality.avg_logprob is None
    assert quality.text_complete is None


def test_an_edge_inside_speech_is_loud() -> None:
    samples = recording()
    quality = measure(samples, piece(start=1.5), [REGION], noise_power(samples, [REGION]))
    assert quality.edge_energy_db[0] == pytest.approx(0, abs=1)
    assert quality.edge_energy_db[1] == pytest.approx(-40, abs=1)


def test_clipped_samples_are_counted() -> None:
    samples = np.clip(recording(speech=1.0), -1, 1)
    quality = measure(samples, piece(start=1, stop=3), [REGION], noise_power(samples, [REGION]))
    assert quality.clipped_share == pytest.approx(0.317, abs=0.01)  # outside one standard deviation
    assert quality.peak_dbfs == 0


def test_silence_without_any_noise_and_speech_without_silence_have_measures_too() -> None:
    samples = recording(noise=0)
    quality = measure(samples, piece(), [REGION], noise_power(samples, [REGION]))
    assert quality.snr_db == 100
    assert quality.edge_energy_db == (-100, -100)
    everywhere = [Region(0, 4 * SECOND)]
    assert noise_power(samples, everywhere) is None
    assert measure(samples, piece(), everywhere, None).snr_db is None


def test_the_least_sure_window_speaks_for_a_clip() -> None:
    sure = Heard(language="english", avg_logprob=-0.2, compression_ratio=1.2, no_speech_prob=0.1, temperature=0, complete=True)
    unsure = sure.model_copy(update={"avg_logprob": -0.9, "compression_ratio": 2.0, "no_speech_prob": 0.5, "complete": False})
    quality = measure(recording(), piece(heard=(sure, unsure)), [REGION], None)
    assert (quality.avg_logprob, quality.compression_ratio, quality.no_speech_prob, quality.text_complete) == (-0.9, 2.0, 0.5, False)


GOOD = {
    "seconds": 5.0,
    "text": "A sentence of some length that takes five seconds.",
    "language": "english",
    "chars_per_second": 12.0,
    "speech_share": 0.9,
    "peak_dbfs": -3.0,
    "clipped_share": 0.0,
    "snr_db": 40.0,
    "edge_energy_db": (-40.0, -40.0),
    "avg_logprob": -0.2,
    "compression_ratio": 1.3,
    "no_speech_prob": 0.01,
    "text_complete": True,
}


def judged(**changes: object) -> list[str]:
    values = GOOD | changes
    quality = Quality.model_validate({key: value for key, value in values.items() if key not in ("seconds", "text", "language")})
    return failures(Candidate(values["seconds"], values["text"], values["language"], quality, Lengths()))


FAILING = {
    "no_text": {"text": ""},
    "too_short": {"seconds": 0.99},
    "too_long": {"seconds": 20.01},
    "too_slow": {"chars_per_second": 3.9},
    "too_fast": {"chars_per_second": 30.1},
    "unsure_text": {"avg_logprob": -1.0},
    "unfinished_text": {"text_complete": False},
    "repeated_text": {"compression_ratio": 2.41},
    "maybe_no_speech": {"no_speech_prob": 0.61, "avg_logprob": -0.51},
    "clipped": {"clipped_share": 0.001},
    "noisy": {"snr_db": 14.9},
    "cut_in_sound": {"edge_energy_db": (-40.0, -24.9)},
}


def test_a_good_clip_passes_and_every_rule_has_a_clip_that_fails_it_alone() -> None:
    assert judged() == []
    assert set(FAILING) == {rule.reason for rule in RULES}
    assert len(FAILING) == len(RULES)
    for reason, change in FAILING.items():
        assert judged(**change) == [reason]


def test_all_failing_rules_are_listed() -> None:
    assert judged(seconds=0.5, clipped_share=0.5, snr_db=3.0) == ["too_short", "clipped", "noisy"]


def test_what_is_unknown_fails_nothing() -> None:
    assert judged(snr_db=None, avg_logprob=None, compression_ratio=None, no_speech_prob=None, text_complete=None) == []


def test_the_pace_depends_on_the_script_and_the_edge_on_the_room() -> None:
    assert judged(language="chinese", chars_per_second=3.0) == []
    assert judged(language="chinese", chars_per_second=13.0) == ["too_fast"]
    assert judged(snr_db=20.0, edge_energy_db=(-19.0, -20.0)) == []
    assert judged(snr_db=20.0, edge_energy_db=(-13.0, -20.0)) == ["cut_in_sound"]
