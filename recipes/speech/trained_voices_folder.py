"""An exported folder of a model whose prompt names a trained speaker and no language: each voice speaks that of its clips.

Must not import torch: `overtone generate` checks a request before it loads a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import CONFIG

from .exported_speech_folder import SpeechFolder
from .voices_json_schema import VOICES, read_voices


@dataclass(frozen=True)
class TrainedVoicesFolder(SpeechFolder):
    """Base of the classes that implement `VoiceFolder` for such models; a subclass adds `count_tokens`, and `open` as for any."""

    languages: dict[str, str]
    """Speaker → language of the training data, "auto" if it is not known. Trained speakers in their order (`read_languages`), or those of
    a released model."""
    positions: int
    """Longest sequence that the model was made for."""

    @property
    def speakers(self) -> Collection[str]:
        """Implements `SpeechFolder`."""
        return self.languages

    @property
    def longest_text(self) -> int:
        """Implements `SpeechFolder`. Speech takes more positions than its text."""
        return self.positions // 2

    def choose_language(self, given: str | None, speaker: str | None) -> str | None:
        """The language of the speaker's training data if it is known. Raises `UserError` for another one: the prompt has none."""
        trained = self.languages[self.find_speaker(speaker)]
        requested = manifest.AUTO if given is None else manifest.LANGUAGES.get(given.strip().lower(), given.strip().lower())
        if requested not in (manifest.AUTO, trained):
            known = "" if trained == manifest.AUTO else f", {trained}"
            raise UserError(f"--language {given}: this model takes no language; it speaks that of its training data{known}; remove it")
        return None if trained == manifest.AUTO else trained

    def find_speaker(self, given: str | None) -> str:
        """The given speaker, or the only one. Raises `UserError` that lists them."""
        if not self.languages:
            raise UserError(f"{self.folder} names no speakers; train it on a voice, and speak with the export")
        return super().find_speaker(given)


def read_languages(folder: Path) -> dict[str, str]:
    """Trained speaker → language, by `voices.json`; empty if there is no such file, or it lists no speakers. Raises `UserError` for a
    damaged one."""
    speakers = read_voices(folder).get("speakers") or []
    parts = ("name", "language")
    if not isinstance(speakers, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(part), str) for part in parts) for one in speakers
    ):
        raise UserError(f"{folder / VOICES}: speakers: expected a list with a name and a language for each; export the model again")
    return {one["name"]: one["language"] for one in speakers}


def read_positions(config: Mapping[str, JsonValue], folder: Path) -> int:
    """`max_position_embeddings` in the config.json of a folder. Raises `UserError` for anything but a positive integer."""
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or positions < 1:
        raise UserError(f"{folder / CONFIG}: max_position_embeddings {positions!r}: expected at least 1; export the model again")
    return positions
