"""The demo models' archives: expanded once, whole or not at all, and never taken for something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data_prep import shipped
from finetune.errors import UserError


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model "toy" in a place of its own, and an empty cache; gives the folder it was packed from."""
    folder = tmp_path / "made" / "toy"
    (folder / "part").mkdir(parents=True)
    (folder / "README.md").write_text("# toy\n")
    (folder / "part" / "weights").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(shipped.pack(folder))
    monkeypatch.setattr(shipped, "HERE", tmp_path / "models")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_packed_comes_out_and_says_what_it_is(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shipped.folder_of("toy")
    assert contents(found) == contents(toy)
    assert "demo model toy" in capsys.readouterr().err


def test_the_same_folder_gives_the_same_archive(toy: Path) -> None:
    first = shipped.pack(toy)
    (toy / "README.md").touch()
    assert shipped.pack(toy) == first


def test_it_is_expanded_once_and_by_many_at_a_time(toy: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(shipped.folder_of, ["toy"] * 8))
    assert len(found) == 1
    (folder,) = found
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    before = (folder / "part" / "weights").stat().st_mtime_ns
    assert (shipped.folder_of("toy") / "part" / "weights").stat().st_mtime_ns == before


def test_another_archive_of_the_same_name_gets_another_folder(toy: Path) -> None:
    old = shipped.folder_of("toy")
    (toy / "part" / "weights").write_bytes(b"new")
    (shipped.HERE / "toy.zip").write_bytes(shipped.pack(toy))
    assert (shipped.folder_of("toy") / "part" / "weights").read_bytes() == b"new"
    assert (old / "part" / "weights").read_bytes() != b"new"


def test_an_unknown_name_is_refused_with_the_known_ones(toy: Path) -> None:
    with pytest.raises(UserError, match="toyy: no demo model of that name; there are toy"):
        shipped.folder_of("toyy")


def test_a_model_without_a_card_is_not_packed(toy: Path) -> None:
    (toy / "README.md").unlink()
    with pytest.raises(UserError, match="has no README.md"):
        shipped.pack(toy)
