"""Registers the csm recipe for `overtone generate`, evaluation and serving. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone.recipes.speech.cli.generate import GenerateCommand
from overtone.recipes.speech.interface import SpeechRecipe

from .inference.exported_folder import ExportedCsm
from .model.sampling_settings import SCHEME, CsmSampling

if TYPE_CHECKING:
    from .inference.synthesizer import CsmVoice


@dataclass(frozen=True)
class CsmFolder(ExportedCsm):
    """Implements `overtone.recipes.speech.interface.VoiceFolder`."""

    def open(self) -> CsmVoice:
        """Load the weights."""
        from .inference.synthesizer import CsmVoice

        return CsmVoice(self)


SPEECH = SpeechRecipe("csm", CsmFolder.inspect)
COMMAND = GenerateCommand(
    speech=SPEECH,
    scheme=SCHEME,
    Sampling=CsmSampling,
    help={
        "--language": "english, which is all that CSM speaks",
        "--reference": "clip of a voice to clone instead of --speaker; needs --reference-text",
        "--reference-text": "transcript of the clip, whose voice and style the speech continues",
    },
)
