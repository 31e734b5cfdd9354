"""`overtone generate`: speech from an exported folder, for one text or for a file of texts.

overtone generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav

overtone generate --model exports/me --speaker me --text-file lines.txt --out wavs/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.recipes.speech.cli.generate import GenerateCommand
from overtone.recipes.speech.interface import SpeechRecipe

from .inference.exported_folder import ExportedModel
from .inference.synthesizer import Request, Synthesizer
from .model.sampling_settings import SCHEME, SamplingSettings

if TYPE_CHECKING:
    from argparse import _ArgumentGroup


@dataclass(frozen=True)
class QwenVoiceFolder(ExportedModel):
    """Implements `overtone.recipes.speech.interface.VoiceFolder`."""

    def open(self) -> Synthesizer:
        """Load the weights."""
        return Synthesizer(self)


def add_options(group: _ArgumentGroup) -> None:
    """The option that only Qwen3-TTS has."""
    group.add_argument("--streamed-text", action="store_true", help="feed the text token by token; training feeds the whole text first")


def make_command(recipe: str) -> GenerateCommand:
    """The command of the recipe with that name, which trains Qwen3-TTS."""
    return GenerateCommand(
        speech=SpeechRecipe(recipe, QwenVoiceFolder.inspect, base_folders=(CODEC_FOLDER,)),
        scheme=SCHEME,
        Request=Request,
        Sampling=SamplingSettings,
        help={
            "--language": "language name, ISO code or auto (default: the language that the speaker was trained in)",
            "--reference": "clip of a voice to clone instead of --speaker (base exports only)",
            "--reference-text": "transcript of the clip: a released base then continues the clip's style; exports were not trained for it",
        },
        add_options=add_options,
    )
