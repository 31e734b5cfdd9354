"""Common base of the loaded models of all speech recipes: the part of `overtone.recipes.speech.interface.Voice` that describes an exported
folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from overtone.finetune.storage.model_security import CONFIG

from .interface import SpeechRequest


class CheckedFolder(Protocol):
    """The part of `VoiceFolder` that a loaded model needs."""

    @property
    def folder(self) -> Path: ...

    def check(self, request: SpeechRequest) -> None:
        """Raises `UserError` for a request that the model cannot speak, as `VoiceFolder.check` does."""


class LoadedVoice:
    """Base of the classes that implement `Voice`."""

    def __init__(self, folder: CheckedFolder, speakers: Collection[str], defaults: Mapping[str, Any]) -> None:
        """`speakers`: names in lower case. `defaults`: the settings of requests that have none (see `SamplingScheme.resolve`)."""
        self._folder, self._speakers, self._defaults = folder, tuple(sorted(speakers)), defaults

    @property
    def speakers(self) -> tuple[str, ...]:
        """Lower-case names."""
        return self._speakers

    @property
    def default_temperature(self) -> float:
        """Temperature of sampled requests that set none. If codebooks have separate settings, this is the temperature of the first one."""
        return float(self._defaults["temperature"])

    @property
    def samples_by_default(self) -> bool:
        """True if requests without sampling settings are sampled."""
        return bool(self._defaults["do_sample"])

    @property
    def created(self) -> int:
        """Time of the export, in seconds since the epoch."""
        return int((self._folder.folder / CONFIG).stat().st_mtime)

    def check(self, request: SpeechRequest) -> None:
        """Raises `UserError`, which lists what exists, for a request that this model cannot speak."""
        self._folder.check(request)
