"""The consent is a file in the folder of the recordings, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.uploads.speaker_consent import CONSENT, TEXTS, read_consent, write_consent


def test_it_says_who_when_and_what(tmp_path: Path) -> None:
    assert read_consent(tmp_path) is None
    write_consent(tmp_path, "Ann", "agreed")
    found = read_consent(tmp_path)
    assert found is not None and (found.who, found.text) == ("Ann", TEXTS["agreed"]) and found.when.endswith("Z")
    with pytest.raises(UserError, match="exists"):
        write_consent(tmp_path, "Bob", "own")
    assert read_consent(tmp_path) == found


@pytest.mark.parametrize("content", ["", "[]", '{"who": "", "when": "", "text": ""}', '{"who": "a", "when": "", "text": "", "more": 1}'])
def test_a_file_of_another_kind_is_no_consent(content: str, tmp_path: Path) -> None:
    (tmp_path / CONSENT).write_text(content)
    with pytest.raises(UserError, match="give the consent again"):
        read_consent(tmp_path)


def test_a_link_to_nowhere_is_no_consent(tmp_path: Path) -> None:
    (tmp_path / CONSENT).symlink_to(tmp_path / "none")
    with pytest.raises(UserError, match="give the consent again"):
        read_consent(tmp_path)
