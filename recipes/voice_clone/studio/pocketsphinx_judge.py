"""A second judge of what is said: CMU Sphinx, which learned people's voices and no synthesiser's, listening for the demo's grammar.

It has no sound and no weights in common with whisper-demo-en. What both understand less well after a codec, the codec has lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import soxr

from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Samples
from finetune.errors import UserError
from recipes.voice_clone.studio.corpus import grammar

NAME = "pocketsphinx"
WHO_AND_WHAT = ("<what> = /0.6/ the <adjective> <noun> | /0.37/ <any> <noun> | /0.03/ an <noun>;", "<who> = /0.3/ <name> | /0.7/ <what>;")
"""As often as `grammar` says them."""


def judge() -> Callable[[Sequence[tuple[str, Samples]]], float]:
    """Tells the share of wrong words of sentences: (text, samples [n] at 24 kHz). Raises `UserError` if pocketsphinx is not installed."""
    decoder = _decoder()
    return lambda said: _word_error_rate(decoder, said)


def _word_error_rate(decoder: Any, said: Sequence[tuple[str, Samples]]) -> float:
    import jiwer

    heard = [_heard(decoder, samples) for _, samples in said]
    return float(jiwer.wer([" ".join(grammar.words_of(text)) for text, _ in said], heard))


def jsgf() -> str:
    """The grammar in the JSpeech Grammar Format (https://www.w3.org/TR/jsgf/): frames by their weights, words of a slot alike."""
    slots = [f"<{name}> = {' | '.join(' '.join(grammar.words_of(entry)) for entry in entries)};" for name, entries in grammar.SLOTS.items()]
    frames = [f"/{weight}/ {_rule(frame)}" for frame, weight in grammar.FRAMES]
    return "\n".join(["#JSGF V1.0;", "grammar demo;", *slots, *WHO_AND_WHAT, f"public <sentence> = {' | '.join(frames)};"])


def _rule(frame: str) -> str:
    return " ".join(f"<{slot}>" if slot else word.lower() for slot, word in re.findall(r"\{(\w+)\}|([A-Za-z]+)", frame))


def _decoder() -> Any:
    try:
        from pocketsphinx import Decoder
    except ImportError as error:
        raise UserError(f"--asr {NAME}: the package is not installed; pip install 'overtone[studio]'") from error
    decoder = Decoder(lm=None, samprate=SPEECH_RATE, loglevel="FATAL")
    decoder.add_jsgf_string("demo", jsgf())
    decoder.activate_search("demo")
    return decoder


def _heard(decoder: Any, samples: Samples) -> str:
    """The words of one sentence; none if no sentence of the grammar fits."""
    wave = np.clip(soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="HQ"), -1, 1)
    decoder.start_utt()
    decoder.process_raw((wave * 32767).astype(np.int16).tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return found.hypstr if found else ""
