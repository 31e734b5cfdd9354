"""The checks that the folders of all speech recipes share, with a folder that counts letters and speaks two languages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.exported_speech_folder import SpeechFolder
from overtone.recipes.speech.interface import SpeechRequest


@dataclass(frozen=True)
class LetterFolder(SpeechFolder):
    speakers: tuple[str, ...] = ()
    longest_text: int = 5
    can_clone: bool = False

    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        return len(text)

    def choose_language(self, given: str | None, speaker: str | None) -> str:
        if given == "klingon":
            raise UserError("klingon is not known")
        return given or {"ann": "german"}.get(speaker or "", "english")


def make_folder(folder: Path, can_clone: bool = False) -> LetterFolder:
    return LetterFolder(folder, {}, ("ann", "bob"), can_clone=can_clone)


def test_a_request_is_completed_with_speaker_and_language(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, can_clone=True)
    folder.check(SpeechRequest("Hello", "Ann"))
    assert folder.complete(SpeechRequest("Hello", "Ann ")) == SpeechRequest("Hello", "ann", "german")
    clip = tmp_path / "clip.wav"
    clip.touch()
    folder.check(SpeechRequest("Hello", None, reference=clip))
    assert folder.complete(SpeechRequest("Hello", None, reference=clip)) == SpeechRequest("Hello", None, "english", clip)
    assert folder.first_speaker == "ann"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (SpeechRequest("…", "ann"), "nothing to speak"),
        (SpeechRequest("Hello", None), "--speaker is missing; .* has several speakers: ann, bob"),
        (SpeechRequest("Hello", "eve"), "does not have this speaker; it has ann, bob"),
        (SpeechRequest("Hello", "ann", "klingon"), "klingon is not known"),
        (SpeechRequest("Hello!", "ann"), "a text of 6 tokens is too long for this model, which takes 5"),
        (SpeechRequest("Hello", "ann", reference_text="Hello!"), "a text of 6 tokens"),
        (SpeechRequest("Hello", None, reference=Path("clip.wav")), "cannot clone one; give one of its speakers: ann, bob"),
    ],
)
def test_a_request_that_cannot_be_spoken_is_refused(request_: SpeechRequest, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make_folder(tmp_path).check(request_)


def test_a_clip_is_checked_and_so_is_the_language_for_it(tmp_path: Path) -> None:
    folder, clip = make_folder(tmp_path, can_clone=True), tmp_path / "clip.wav"
    with pytest.raises(UserError, match="no such file"):
        folder.check(SpeechRequest("Hello", None, reference=clip))
    clip.touch()
    with pytest.raises(UserError, match="each choose a voice"):
        folder.check(SpeechRequest("Hello", "ann", reference=clip))
    with pytest.raises(UserError, match="klingon is not known"):
        folder.check(SpeechRequest("Hello", None, "klingon", clip))
