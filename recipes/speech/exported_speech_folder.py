"""The checks of a request that the exported folders of all speech recipes share, by what each recipe says about its own.

Must not import torch: `overtone generate` checks a request before it loads a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overtone.finetune.errors import UserError

from . import request_checks
from .interface import SpeechRequest


@dataclass(frozen=True)
class SpeechFolder(ABC):
    """Base of the classes that implement `VoiceFolder`; a subclass adds `open`."""

    folder: Path
    generation: dict[str, Any]
    """Its own sampling settings; see `SamplingScheme.read_model_settings`."""

    @property
    @abstractmethod
    def speakers(self) -> Collection[str]:
        """Names in lower case."""

    @property
    @abstractmethod
    def longest_text(self) -> int:
        """The maximum number of tokens of a text. Speech takes more positions than its text, so it is at most half of them."""

    @abstractmethod
    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        """Return how many tokens a text of the request has. Raises `UserError` for a text that the model cannot read."""

    @abstractmethod
    def choose_language(self, given: str | None, speaker: str | None) -> str | None:
        """The language in which a speaker, or the voice of a clip, speaks; None if the prompt has none, and it is not known. `given`: that
        of the request. Raises `UserError` for one that the model cannot speak."""

    @property
    def can_clone(self) -> bool:
        """True if `SpeechRequest.reference` is supported."""
        return False

    @property
    def first_speaker(self) -> str | None:
        """The first speaker that was trained; None if the folder names none."""
        return next(iter(self.speakers), None)

    def find_speaker(self, given: str | None) -> str:
        """The given speaker, or the only one. Raises `UserError` that lists the speakers."""
        return request_checks.find_speaker(given, self.speakers, self.folder)

    def check_reference(self, request: SpeechRequest) -> None:
        """Raises `UserError` for a request whose reference clip cannot be used."""
        if not self.can_clone:
            raise UserError(
                "--reference: this model speaks only with its trained voices, and cannot clone one; give one of its speakers: "
                f"{', '.join(self.speakers)}"
            )
        request_checks.check_clip(request)

    def check(self, request: SpeechRequest) -> None:
        """Raises `UserError`, which lists the valid values, for a request that the model cannot speak."""
        request_checks.check_text(request)
        if request.reference is None:
            self.choose_language(request.language, self.find_speaker(request.speaker))
        else:
            self.check_reference(request)
            self.choose_language(request.language, None)
        for text in (request.text, request.reference_text):
            if text is not None:
                request_checks.check_length(text, self.count_tokens(text, request), self.longest_text)

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its speaker and its language."""
        speaker = self.find_speaker(request.speaker) if request.reference is None else None
        return replace(request, speaker=speaker, language=self.choose_language(request.language, speaker))
