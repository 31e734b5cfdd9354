"""How much of a sentence a codec keeps: on held-out sentences of every voice of the corpus, through the stock loader.

    python -m recipes.voice_clone.studio.codec.measure_codec [--model codec-demo] [--corpus runs/studio/corpus] [--asr JUDGE]…

Distances are between the original and its reconstruction; `mean_frame` is what the average sound of all clips would get. The speaker is
told by a classifier that has learned the voices from other, original clips. No words are counted without
--asr, which may be given more than once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.audio_codecs.qwen3_tts import encode_clips, find_codec, load_codec
from finetune.errors import UserError, exit_code
from recipes.voice_clone.studio import judges
from recipes.voice_clone.studio.codec.features import Heard
from recipes.voice_clone.studio.codec.train_codec import clips_of
from recipes.voice_clone.studio.codec.training_clips import Clip, make_clip
from recipes.voice_clone.studio.corpus.make_corpus import FOLDER as CORPUS
from recipes.voice_clone.studio.judges import Judge

SENTENCES, LEARNED = 16, 40
"""Of each voice: to measure on, and to know the voice from."""
CEPSTRA = 13
AUDIBLE = 10 ** (-35 / 10)
"""Of the power of a clip's loudest spectrum: what is softer is no speech."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="measure_codec", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="codec-demo", help="name or folder (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    judges.add_option(parser)
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="of each voice (default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: at least 1")
    called = judges.called(options.asr)
    print(json.dumps(measure(find_codec(options.model), options.corpus, options.sentences, called), indent=1))
    return 0


def measure(codec: Path, corpus: Path, sentences: int, asked: dict[str, Judge]) -> dict[str, Any]:
    """All figures of the tokenizer in a folder."""
    originals = clips_of(corpus, "held_out", sentences)
    tokenizer = load_codec(codec, "cpu")
    again = [make_clip(reconstructed(tokenizer, clip.wave), clip.text, clip.voice) for clip in originals]
    told_apart = speaker_accuracy(clips_of(corpus, "train", LEARNED), {"originals": originals, "reconstructions": again})
    return {
        "clips": len(originals),
        "seconds": round(sum(len(clip.wave) for clip in originals) / MASTER_RATE, 1),
        "mel_cepstral_distance_db": distances(originals, again),
        "pitch_error_cents": round(float(np.median([pitch_error(a.heard, b.heard) for a, b in zip(originals, again, strict=True)])), 1),
        "speaker_accuracy": told_apart,
        "word_error_rate": {
            name: {"originals": _wrong(judge, originals), "reconstructions": _wrong(judge, again)} for name, judge in asked.items()
        },
    }


def reconstructed(tokenizer: Any, wave: Samples) -> Samples:
    """There and back."""
    import torch

    codes = encode_clips(tokenizer, [wave])[0]
    waves, _ = tokenizer.decode([{"audio_codes": torch.from_numpy(codes.astype(np.int64))}])
    return np.asarray(waves[0], dtype=np.float32)


def distances(originals: Sequence[Clip], again: Sequence[Clip]) -> dict[str, float]:
    """Mean over each clip's frames of speech, then over all clips and over those of each voice."""
    average = np.concatenate([clip.heard.log_mel(1.0).numpy() for clip in originals]).mean(0)
    found = [mel_cepstral_distance(_spectra(a), _spectra(b))[speech(a.heard)].mean() for a, b in zip(originals, again, strict=True)]
    blind = [mel_cepstral_distance(_spectra(clip), average[None])[speech(clip.heard)].mean() for clip in originals]
    voices = sorted({clip.voice for clip in originals})
    by_voice = {voice: np.mean([d for d, clip in zip(found, originals, strict=True) if clip.voice == voice]) for voice in voices}
    return {name: round(float(value), 2) for name, value in {"all": np.mean(found), "mean_frame": np.mean(blind), **by_voice}.items()}


def mel_cepstral_distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """[times] in dB, of log-mel power spectra [times, bands] in nepers: 13 cepstra of the amplitude, without the level
    (Kubichek 1993, "Mel-cepstral distance measure for objective speech quality assessment")."""
    from scipy.fft import dct

    cepstra = dct((one - other) / 2, axis=1, norm="ortho")[:, 1 : 1 + CEPSTRA] / np.sqrt(one.shape[1] / 2)
    return 10 / np.log(10) * np.sqrt(2 * np.square(cepstra).sum(1))


def speech(heard: Heard) -> NDArray[np.bool_]:
    """[times]: where someone speaks."""
    power = heard.power.sum(1).numpy()
    return power > power.max() * AUDIBLE


def pitch_error(one: Heard, other: Heard) -> float:
    """Median over the frames that are voiced in both, in cents; an octave if none is."""
    voiced = (one.voicing > 0.6) & (other.voicing > 0.5)
    return float((one.log_hz - other.log_hz)[voiced].abs().median() * 1200 / np.log(2)) if voiced.any() else 1200.0


def speaker_accuracy(known: Sequence[Clip], asked: dict[str, Sequence[Clip]]) -> dict[str, float]:
    """Share of clips whose speaker linear discriminants name rightly."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    judge = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    judge.fit([portrait(clip.heard) for clip in known], [clip.voice for clip in known])
    return {
        name: round(float(np.mean(judge.predict([portrait(clip.heard) for clip in clips]) == [clip.voice for clip in clips])), 4)
        for name, clips in asked.items()
    }


def portrait(heard: Heard) -> NDArray[np.float64]:
    """Mean spectrum of speech without its level, how much it varies, and the usual pitch."""
    spectra = heard.log_mel(1.0).numpy()[speech(heard)]
    voiced = heard.log_hz[heard.voicing > 0.5].numpy()
    usual = np.median(voiced) if len(voiced) else 0.0
    return np.concatenate([spectra.mean(0) - spectra.mean(), spectra.std(0), [4 * usual, heard.voicing.mean()]])


def _wrong(judge: Judge, clips: Sequence[Clip]) -> float:
    return round(judge([(clip.text, clip.wave) for clip in clips]), 4)


def _spectra(clip: Clip) -> NDArray[np.float32]:
    return clip.heard.log_mel(1.0).numpy()


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
