"""A second judge of what is said: CMU Sphinx, which learned people's voices and no synthesiser's, listening for the demo's grammar.

It shares nothing with whisper-demo-en. What both understand less well after a codec, the codec has lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import soxr

from data_prep.audio import MASTER_RATE, SPEECH_RATE, Samples
from finetune.errors import UserError
from recipes.voice_clone.studio import grammar

NAME = "pocketsphinx"


def word_error_rate(said: Iterable[tuple[str, Samples]]) -> float:
    """Wrong words over words of some sentences: (text, samples [n] at 24 kHz). Raises `UserError` if pocketsphinx is not installed."""
    import jiwer

    decoder = _decoder()
    pairs = [(" ".join(grammar.words_of(text)), _heard(decoder, samples)) for text, samples in said]
    return float(jiwer.wer([text for text, _ in pairs], [heard for _, heard in pairs]))


def jsgf() -> str:
    """The grammar in the JSpeech Grammar Format (https://www.w3.org/TR/jsgf/): each frame by its weight, each word of a slot alike."""
    slots = [f"<{name}> = {' | '.join(' '.join(grammar.words_of(entry)) for entry in entries)};" for name, entries in grammar.SLOTS.items()]
    frames = [f"/{weight}/ {_rule(frame)}" for frame, weight in grammar.FRAMES]
    who_and_what = ["<what> = the <adjective> <noun> | <any> <noun> | an <noun>;", "<who> = <name> | <what>;"]
    return "\n".join(["#JSGF V1.0;", "grammar demo;", *slots, *who_and_what, f"public <sentence> = {' | '.join(frames)};"])


def _rule(frame: str) -> str:
    return " ".join(f"<{slot}>" if slot else word.lower() for slot, word in re.findall(r"\{(\w+)\}|([A-Za-z]+)", frame))


def _decoder() -> Any:
    try:
        from pocketsphinx import Decoder
    except ImportError as error:
        raise UserError("pocketsphinx is not installed; it listens beside Whisper: pip install pocketsphinx") from error
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
