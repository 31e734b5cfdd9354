"""Names that strangers choose become names that no disk, shell or page misreads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.finetune.errors import UserError
from overtone.studio.uploads.file_names import DEEPEST, LONGEST, make_safe_path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a b (1).wav", "a b (1).wav"),
        ("Zoë/grüße.wav", "Zoë/grüße.wav"),
        ("../../etc/passwd", "etc/passwd"),
        ("/root/.ssh/id", "root/ssh/id"),
        ("C:\\voices\\a.wav", "C_/voices/a.wav"),
        ("--out", "out"),
        ("~/x", "file/x"),
        ("a\nb\x1b[0m\u202ecod.wav", "a_b_[0m_cod.wav"),
        ("<img src=x onerror=alert(1)>$(rm x)`.wav", "_img src=x onerror=alert(1)__(rm x)_.wav"),
        ("...", "file"),
        ("", "file"),
        ("\ud800.wav", "_.wav"),
    ],
)
def test_names(given: str, expected: str) -> None:
    assert str(make_safe_path(given)) == expected


def test_a_long_name_keeps_its_ending() -> None:
    name = str(make_safe_path("ü" * 500 + ".transcript.json"))
    assert len(name.encode()) <= LONGEST and name.endswith(".json")


def test_deep_folders_are_refused() -> None:
    with pytest.raises(UserError, match="at most 3"):
        make_safe_path("/".join("a" * (DEEPEST + 1)))


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_name_is_safe_and_stays_so(name: str) -> None:
    try:
        path = make_safe_path(name)
    except UserError:
        return
    assert not path.is_absolute() and all(part[0] not in ".-~ " and part.isprintable() for part in path.parts)
    assert all(len(part.encode()) <= LONGEST for part in path.parts) and ".." not in path.parts
    assert make_safe_path(str(path)) == path
