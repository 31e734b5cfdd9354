"""Registers the codec_lm recipe for `overtone generate`, evaluation and serving. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone.recipes.speech.cli.generate import GenerateCommand
from overtone.recipes.speech.interface import SpeechRecipe

from .inference.exported_folder import ExportedSpeechTokens
from .model.sampling_settings import SCHEME, TokenSampling

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from .inference.synthesizer import TokenSynthesizer

CODEC_FOLDER = "speech_codec"
"""Codec folder of an export, as in `overtone.data_prep.audio_codecs.snac_codec`, which is slow to import."""


@dataclass(frozen=True)
class CodecLmFolder(ExportedSpeechTokens):
    """Implements `overtone.recipes.speech.interface.VoiceFolder`."""

    def open(self) -> TokenSynthesizer:
        """Load the weights."""
        from .inference.synthesizer import TokenSynthesizer

        return TokenSynthesizer(self)


def add_options(group: _ArgumentGroup) -> None:
    """The option that only models with codec tokens have."""
    group.add_argument(
        "--unconstrained",
        dest="constrained",
        action="store_false",
        help="choose among all tokens instead of the codes that can come next; a token that is no such code is an error",
    )


SPEECH = SpeechRecipe("codec_lm", CodecLmFolder.inspect, base_folders=(CODEC_FOLDER,))
COMMAND = GenerateCommand(
    speech=SPEECH,
    scheme=SCHEME,
    Sampling=TokenSampling,
    help={
        "--language": "the language that the speaker was trained in; these models cannot be given another",
        "--reference": "not supported: these models speak with the voices that they were trained on",
    },
    add_options=add_options,
)
