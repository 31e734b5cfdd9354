"""Speak with an exported folder.

python -m finetune generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

from finetune import files

from .exported import Exported
from .synthesis import Request, Sampling, Synthesizer, check

if TYPE_CHECKING:
    import numpy as np


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb: check the request, load, speak, write the wav. Raises `UserError` for what the model cannot do."""
    asked = parse(argv)
    exported = Exported.of(folder)
    request = Request(asked.text, asked.speaker, asked.language, asked.reference, asked.reference_text)
    check(exported, request)
    with Synthesizer(exported) as voice:
        (spoken,) = voice.speak([request], Sampling(greedy=asked.greedy, seed=asked.seed, max_seconds=asked.max_seconds))
    files.write_bytes(asked.out, wav(spoken.wave, spoken.rate))
    speaker = exported.speaker(asked.speaker) if asked.reference is None else None
    seconds = len(spoken.wave) / spoken.rate
    print(f"{asked.out}: {seconds:.2f} s, {speaker or asked.reference}, language {exported.language(asked.language, speaker)}")
    if not spoken.ended:
        print(f"it was cut off at --max-seconds {asked.max_seconds:g}: the model did not end by itself, as a hardly trained one may not")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(prog="python -m finetune generate --model FOLDER", description="Speak with an exported voice.")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--speaker", help="a voice of the model; may be left out if there is only one")
    parser.add_argument("--language", help="language name, ISO code or auto; by default the one that the speaker was trained with")
    parser.add_argument("--reference", type=Path, help="clip of a voice to clone instead (base exports only)")
    parser.add_argument("--reference-text", help="what the clip says; then its manner is continued too, otherwise only its voice is used")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"), help="wav file to write")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument("--max-seconds", type=float, default=60.0, help="stop there if the model does not end by itself")
    return parser.parse_args(argv)


def wav(wave: np.ndarray, rate: int) -> bytes:
    """16-bit PCM."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()
