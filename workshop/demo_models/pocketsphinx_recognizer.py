"""A second speech recognizer: CMU Sphinx, trained on human voices only, restricted to the demo's grammar.

It shares no training audio and no weights with whisper-demo-en. Words that both recognize less often after a codec were lost in the codec.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Samples
from overtone.finetune.errors import UserError
from workshop.demo_models.corpus import grammar

NAME = "pocketsphinx"
WHO_AND_WHAT = ("<what> = /0.6/ the <adjective> <noun> | /0.37/ <any> <noun> | /0.03/ an <noun>;", "<who> = /0.3/ <name> | /0.7/ <what>;")
"""The probabilities of `grammar`."""


def load_recognizer() -> Callable[[Samples], str]:
    """A function that transcribes one sentence, samples [n] at 24 kHz. Raises `UserError` if pocketsphinx is not installed."""
    return partial(_recognize, _load_decoder())


def format_grammar() -> str:
    """The grammar in the JSpeech Grammar Format (https://www.w3.org/TR/jsgf/): frames with their weights, words of a slot with equal
    weights."""
    slots = [
        f"<{name}> = {' | '.join(' '.join(grammar.split_words(entry)) for entry in entries)};" for name, entries in grammar.SLOTS.items()
    ]
    frames = [f"/{weight}/ {_format_frame(frame)}" for frame, weight in grammar.FRAMES]
    return "\n".join(["#JSGF V1.0;", "grammar demo;", *slots, *WHO_AND_WHAT, f"public <sentence> = {' | '.join(frames)};"])


def _format_frame(frame: str) -> str:
    return " ".join(f"<{slot}>" if slot else word.lower() for slot, word in re.findall(r"\{(\w+)\}|([A-Za-z]+)", frame))


def _load_decoder() -> Any:
    try:
        from pocketsphinx import Decoder
    except ImportError as error:
        raise UserError(f"--asr {NAME}: the package is not installed; pip install 'overtone[align]'") from error
    decoder = Decoder(lm=None, samprate=SPEECH_RATE, loglevel="FATAL")
    decoder.add_jsgf_string("demo", format_grammar())
    decoder.activate_search("demo")
    return decoder


def _recognize(decoder: Any, samples: Samples) -> str:
    """The words of one sentence; empty if no sentence of the grammar fits."""
    wave = np.clip(soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="HQ"), -1, 1)
    decoder.start_utt()
    decoder.process_raw((wave * 32767).astype(np.int16).tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return found.hypstr if found else ""
