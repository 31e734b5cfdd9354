"""Measure how well a codec preserves speech: on held-out sentences of every voice of the corpus, through the stock loader.

    python -m workshop.demo_models.codec.measure_codec [--model codec-demo] [--corpus runs/studio/corpus] [--asr RECOGNIZER]…

Distances are between the original and its reconstruction, which is first moved earlier by `delay_ms`, the delay of the decoder;
`mean_frame` is the distance to the average sound of all clips. A classifier trained on other, original clips identifies the speaker. The
WER is measured only with --asr, which may be given more than once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.qwen3_tts_codec import encode_clips, find_codec, load_codec
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line
from workshop.demo_models import recognizers
from workshop.demo_models.codec.frame_features import FLOOR, HOP, SPECTRA, FrameFeatures, compute_mel_power
from workshop.demo_models.codec.train_codec import load_clips
from workshop.demo_models.codec.training_clips import CodecClip, make_clip
from workshop.demo_models.corpus.make_corpus import FOLDER as CORPUS
from workshop.demo_models.recognizers import WordErrorMeasure

SENTENCES, REFERENCE_CLIPS = 16, 40
"""Sentences per voice to measure, and clips per voice to train the speaker classifier."""
CEPSTRA = 13
AUDIBLE = 10 ** (-35 / 10)
"""Share of the power of a clip's loudest spectrum below which a spectrum is not speech."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="measure_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", default="codec-demo", help="name or folder (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    recognizers.add_option(parser)
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="sentences per voice (default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: must be at least 1")
    measures = recognizers.load_recognizers(options.asr)
    print_line(json.dumps(measure_codec(find_codec(options.model), options.corpus, options.sentences, measures), indent=1))
    return 0


def measure_codec(codec: Path, corpus: Path, sentences: int, measures: dict[str, WordErrorMeasure]) -> dict[str, Any]:
    """All figures of the tokenizer in a folder."""
    originals = load_clips(corpus, "held_out", sentences)
    tokenizer = load_codec(codec, "cpu")
    waves = [reconstruct(tokenizer, clip.wave) for clip in originals]
    delay = find_delay(originals, waves)
    reconstructions = [
        make_clip(np.append(wave[delay:], np.zeros(delay, np.float32)), clip.text, clip.voice)
        for clip, wave in zip(originals, waves, strict=True)
    ]
    accuracy = measure_speaker_accuracy(
        load_clips(corpus, "train", REFERENCE_CLIPS), {"originals": originals, "reconstructions": reconstructions}
    )
    return {
        "clips": len(originals),
        "seconds": round(sum(len(clip.wave) for clip in originals) / MASTER_RATE, 1),
        "delay_ms": 1000 * delay // MASTER_RATE,
        "mel_cepstral_distance_db": measure_distances(originals, reconstructions),
        "pitch_error_cents": round(
            float(np.median([measure_pitch_error(a.features, b.features) for a, b in zip(originals, reconstructions, strict=True)])), 1
        ),
        "speaker_accuracy": accuracy,
        "word_error_rate": {
            name: {"originals": _measure_words(measure, originals), "reconstructions": _measure_words(measure, reconstructions)}
            for name, measure in measures.items()
        },
    }


def reconstruct(tokenizer: Any, wave: Samples) -> Samples:
    """Encode and decode samples [n] at 24 kHz."""
    return decode(tokenizer, torch.from_numpy(encode_clips(tokenizer, [wave])[0].astype(np.int64)))


def find_delay(originals: Sequence[CodecClip], waves: Sequence[Samples]) -> int:
    """Samples by which reconstructions [n] are late: whole spectra, up to half a frame, with the least distance to the originals."""
    found = [(compute_mel_power(torch.from_numpy(wave)) + FLOOR).log() for wave in waves]
    wanted = [clip.features.log_mel(1.0) for clip in originals]

    def measure(late: int) -> float:
        return float(np.mean([(a[late:] - b[: len(b) - late]).abs().mean() for a, b in zip(found, wanted, strict=True)]))

    return HOP * min(range(SPECTRA // 2 + 1), key=measure)


def decode(tokenizer: Any, codes: torch.Tensor) -> Samples:
    """Decode codes [frames, 16] int64 of one clip."""
    waves, _ = tokenizer.decode([{"audio_codes": codes}])
    return np.asarray(waves[0], dtype=np.float32)


def measure_distances(originals: Sequence[CodecClip], reconstructions: Sequence[CodecClip]) -> dict[str, float]:
    """Means over each clip's frames of speech, then over all clips and over those of each voice."""
    average = np.concatenate([clip.features.log_mel(1.0).numpy() for clip in originals]).mean(0)
    found = [
        measure_mel_cepstral_distance(_spectra(a), _spectra(b))[find_speech(a.features)].mean()
        for a, b in zip(originals, reconstructions, strict=True)
    ]
    blind = [measure_mel_cepstral_distance(_spectra(clip), average[None])[find_speech(clip.features)].mean() for clip in originals]
    voices = sorted({clip.voice for clip in originals})
    by_voice = {voice: np.mean([d for d, clip in zip(found, originals, strict=True) if clip.voice == voice]) for voice in voices}
    return {name: round(float(value), 2) for name, value in {"all": np.mean(found), "mean_frame": np.mean(blind), **by_voice}.items()}


def measure_mel_cepstral_distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """[times] in dB, of log-mel power spectra [times, bands] in nepers: 13 cepstra of the amplitude, without the level (Kubichek 1993,
    "Mel-cepstral distance measure for objective speech quality assessment")."""
    cepstra = dct((one - other) / 2, axis=1, norm="ortho")[:, 1 : 1 + CEPSTRA] / np.sqrt(one.shape[1] / 2)
    return 10 / np.log(10) * np.sqrt(2 * np.square(cepstra).sum(1))


def find_speech(features: FrameFeatures) -> NDArray[np.bool_]:
    """[times] bool: the spectra with speech."""
    power = features.power.sum(1).numpy()
    return power > power.max() * AUDIBLE


def measure_pitch_error(one: FrameFeatures, other: FrameFeatures) -> float:
    """Median over the frames that are voiced in both, in cents; an octave if there are none."""
    voiced = (one.voicing > 0.6) & (other.voicing > 0.5)
    return float((one.log_hz - other.log_hz)[voiced].abs().median() * 1200 / np.log(2)) if voiced.any() else 1200.0


def measure_speaker_accuracy(known: Sequence[CodecClip], groups: dict[str, Sequence[CodecClip]]) -> dict[str, float]:
    """Share of clips whose speaker linear discriminants identify correctly."""
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    classifier.fit([summarize_voice(clip.features) for clip in known], [clip.voice for clip in known])
    return {
        name: round(
            float(np.mean(classifier.predict([summarize_voice(clip.features) for clip in clips]) == [clip.voice for clip in clips])), 4
        )
        for name, clips in groups.items()
    }


def summarize_voice(features: FrameFeatures) -> NDArray[np.float64]:
    """Mean spectrum of speech without its level, its standard deviation, and the usual pitch."""
    spectra = features.log_mel(1.0).numpy()[find_speech(features)]
    voiced = features.log_hz[features.voicing > 0.5].numpy()
    usual = np.median(voiced) if len(voiced) else 0.0
    return np.concatenate([spectra.mean(0) - spectra.mean(), spectra.std(0), [4 * usual, features.voicing.mean()]])


def _measure_words(measure: WordErrorMeasure, clips: Sequence[CodecClip]) -> float:
    return round(measure([(clip.text, clip.wave) for clip in clips]), 4)


def _spectra(clip: CodecClip) -> NDArray[np.float32]:
    return clip.features.log_mel(1.0).numpy()


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
