"""`overtone verify-audio`: files and folders, marks of this package and of others, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune import __main__ as verbs
from overtone.finetune.storage.synthetic_audio_mark import SOFTWARE, SyntheticMark


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "own.wav").write_bytes(b"RIFF" + SyntheticMark("me").comment.encode())
    (tmp_path / "inner" / "other.MP3").write_bytes(b"ID3 AI-generated")
    (tmp_path / "inner" / "notes.txt").write_bytes(b"synthetic speech")
    return tmp_path


def test_marked_files_are_described(clips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main(["verify-audio", str(clips)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{clips}/inner/other.MP3: marked by another tool: AI-generated",
        f"{clips}/own.wav: synthetic speech, model me, made with {SOFTWARE}",
        "2 of 2 files are marked as synthetic speech",
    ]


def test_an_unmarked_file_changes_the_exit_code(clips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clips / "real.flac").write_bytes(b"fLaC")
    assert verbs.main(["verify-audio", str(clips / "own.wav"), str(clips / "real.flac")]) == 1
    assert f"{clips}/real.flac: no mark\n1 of 2 files" in capsys.readouterr().out


def test_paths_without_audio_are_errors(clips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clips / "empty").mkdir()
    for path, message in ((clips / "empty", "contains no audio files"), (clips / "gone.wav", "no such file")):
        assert verbs.main(["verify-audio", str(path)]) == 2
        assert message in capsys.readouterr().err
