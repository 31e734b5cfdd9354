"""Jobs of this user are signed with a key that is outside of the studio's folder."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_signatures
from overtone.studio.jobs.job_signatures import find_key, is_signed, sign_text


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_only_the_same_text_with_the_same_key_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_signed("a", "") and not find_key().exists()
    signature = sign_text("a")
    assert is_signed("a", signature) and sign_text("a") == signature
    assert not any(is_signed(*pair) for pair in (("b", signature), ("a", ""), ("a", "\u00e9"), ("a", signature[:-1])))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not is_signed("a", signature) and sign_text("a") != signature


def test_nobody_else_can_read_the_key(state: Path) -> None:
    sign_text("a")
    assert find_key() == state / "overtone" / "studio.key"
    assert stat.S_IMODE(find_key().stat().st_mode) == 0o600 and stat.S_IMODE(find_key().parent.stat().st_mode) == 0o700


def test_a_key_that_is_none_is_refused(state: Path) -> None:
    find_key().parent.mkdir(parents=True)
    find_key().write_bytes(b"short")
    with pytest.raises(UserError, match="is not the key that the studio made"):
        sign_text("a")
    assert not is_signed("a", "")
    find_key().unlink()
    state.joinpath("overtone").rmdir()
    state.joinpath("overtone").touch()
    with pytest.raises(UserError, match="is a file, not a folder"):
        sign_text("a")


def test_a_home_behind_a_link_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert is_signed("a", sign_text("a")) and job_signatures.find_key().is_relative_to(tmp_path / "disk")
