"""Measure where codec-demo loses words: the WER of sentences of the new voice after each stage of the codec.

    python -m workshop.demo_models.codec.measure_losses --asr tiny.en [--corpus runs/studio/corpus] [--sentences 40]

Prints JSON: WERs in percent by recognizer, and the squared error of the encoder relative to its targets. `exact features` and the two kinds
of codes are spoken by Griffin-Lim, without a decoder: `exact codes` are those that the codebooks have for the exact features, `codes` those
of the encoder. So what differs between these two is lost by the encoder, and what differs between `codes` and `codes, decoded` by the
decoder. The sentences are those that settings are chosen by (`make_new_voice.list_choosing_sentences`), none of which is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.qwen3_tts_codec import find_codec, load_codec
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line
from workshop.demo_models import recognizers
from workshop.demo_models.codec import encoder_training, measure_codec, pack_codec, train_codec
from workshop.demo_models.codec.codebooks import Codebooks, fit_codebooks
from workshop.demo_models.codec.frame_features import FFT, FLOOR, HOP, WINDOW, make_mel_filters, slice_spectra
from workshop.demo_models.codec.training_clips import CodecClip, make_clip
from workshop.demo_models.corpus import make_new_voice
from workshop.demo_models.corpus.make_corpus import FOLDER as CORPUS
from workshop.demo_models.corpus.voices import NEW_VOICE, speak

SENTENCES, ITERATIONS = 40, 60
"""Sentences to measure, and iterations of Griffin-Lim."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="measure_losses", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    recognizers.add_option(parser)
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="(default %(default)s)")
    options = parser.parse_args(argv)
    if options.sentences < 1:
        raise UserError(f"--sentences {options.sentences}: must be at least 1")
    measures = recognizers.load_recognizers(options.asr)
    tokenizer = load_codec(find_codec(pack_codec.NAME), "cpu")
    books = restore_codebooks(tokenizer, train_codec.load_clips(options.corpus, "train", train_codec.CODEBOOK_CLIPS))
    texts = make_new_voice.list_choosing_sentences(count=options.sentences)
    clips = [make_clip(np.asarray(speak(NEW_VOICE, text), np.float32), text, NEW_VOICE.name) for text in texts]
    stages = speak_stages(tokenizer, books, clips)
    found: dict[str, Any] = {"relative_error": encoder_training.measure_error(tokenizer.model, clips, books)}
    for name, measure in measures.items():
        found[name] = {stage: round(100 * measure(list(zip(texts, waves, strict=True))), 1) for stage, waves in stages.items()}
    print_line(json.dumps(found, indent=1))
    return 0


def restore_codebooks(tokenizer: Any, clips: Sequence[CodecClip], seed: int = 0) -> Codebooks:
    """The codebooks of the model with the principal axes, which its files do not have: made again from the same clips. Raises `UserError`
    if they are not those of the model."""
    books = fit_codebooks(torch.cat(train_codec.collect_vectors(clips, seed)), seed)
    quantizer = tokenizer.model.encoder.quantizer
    layers = (*quantizer.semantic_residual_vector_quantizer.layers, *quantizer.acoustic_residual_vector_quantizer.layers)
    if not all(torch.equal(layer.codebook.embed_sum.float(), table) for layer, table in zip(layers, books.list_tables(), strict=True)):
        raise UserError("the corpus is not the one from which the codebooks of this codec were made; make it again with its seed")
    return books


def speak_stages(tokenizer: Any, books: Codebooks, clips: Sequence[CodecClip]) -> dict[str, list[Samples]]:
    """Stage → the clips as they sound after it."""
    exact = [books.encode(books.project(clip.features.vectors(1.0))) for clip in clips]
    encoded = [tokenizer.encode(clip.wave, sr=MASTER_RATE).audio_codes[0].long() for clip in clips]

    def vocode(codes: Tensor) -> Samples:
        return run_griffin_lim(slice_spectra(books.restore(books.decode(codes))))

    decode = partial(measure_codec.decode, tokenizer)
    spoken: dict[str, tuple[Callable[[Tensor], Samples], list[Tensor]]] = {
        "exact features": (run_griffin_lim, [clip.features.log_mel(1.0) for clip in clips]),
        "exact codes": (vocode, exact),
        "codes": (vocode, encoded),
        "exact codes, decoded": (decode, exact),
        "codes, decoded": (decode, encoded),
    }
    return {"recordings": [clip.wave for clip in clips]} | {stage: [say(one) for one in given] for stage, (say, given) in spoken.items()}


def run_griffin_lim(log_mel: Tensor) -> Samples:
    """Audio [HOP·n] from spectra [n, BANDS], as `FrameFeatures.log_mel` has them; their power is spread over the bins by non-negative least
    squares (Griffin & Lim 1984, https://doi.org/10.1109/TASSP.1984.1164317)."""
    librosa = import_librosa()
    power = np.maximum(np.exp(log_mel.numpy()) - FLOOR, 0).T.astype(np.float32)
    bins = librosa.util.nnls(make_mel_filters().numpy(), power) * float(torch.hann_window(WINDOW).square().sum())
    wave = librosa.griffinlim(np.sqrt(bins), n_iter=ITERATIONS, hop_length=HOP, win_length=WINDOW, n_fft=FFT, center=False, random_state=0)
    late = (FFT + WINDOW) // 2 - HOP  # from where the window of a spectrum begins to where librosa puts it
    return np.asarray(wave[late : late + HOP * len(log_mel)], np.float32)


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
