"""A name in a row finds its file in another Unicode form, case or with other separators, and never one outside the folder."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.referenced_files import AmbiguousNameError, find_file, is_renamed


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("clips/fünf.wav", unicodedata.normalize("NFD", "clips/fünf.wav")),
        (unicodedata.normalize("NFD", "señor/a.wav"), "señor/a.wav"),
        ("Clips/A.WAV", "clips/a.wav"),
        ("clips\\fünf\\a.wav", unicodedata.normalize("NFD", "clips/Fünf/a.wav")),
    ],
)
def test_the_only_file_that_fits_is_found(name: str, there: str, tmp_path: Path) -> None:
    path = write(tmp_path / there)
    assert find_file(tmp_path, name) == path and is_renamed(tmp_path, name, path)
    exact = write(tmp_path / name)
    assert find_file(tmp_path, name) == exact and not is_renamed(tmp_path, name, exact)


def test_a_missing_file_is_returned_as_it_is_named_until_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    for name in ("clips/b.wav", "other/b.wav", "clips/../b.wav", "x" * 300):
        assert find_file(tmp_path, name) == (tmp_path / name).resolve()
    path = write(tmp_path / "clips" / "B.wav")
    os.utime(path.parent, ns=(1, 1))
    assert find_file(tmp_path, "clips/b.wav") == path


def test_two_files_that_fit_are_both_named_and_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    for name in ("a.wav", "A.wav"):
        write(tmp_path / "root" / name)
    with pytest.raises(AmbiguousNameError, match="'a.WAV' fits both 'A.wav' and 'a.wav' in .*; write the name exactly as one of them"):
        find_file(tmp_path / "root", "a.WAV")
    write(tmp_path / "outside" / "x.wav")
    (tmp_path / "root" / "Link").symlink_to(tmp_path / "outside")
    for name in ("link/x.wav", "../outside/x.wav"):
        with pytest.raises(UserError, match="leads outside of") as caught:
            find_file(tmp_path / "root", name)
        assert not isinstance(caught.value, AmbiguousNameError)
    assert find_file(tmp_path / "root", "b\\..\\..\\outside\\x.wav") == tmp_path / "root" / "b\\..\\..\\outside\\x.wav"
