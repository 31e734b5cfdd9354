"""The archives of the demo models: found in a clone or in an installed package, expanded once, completely or not at all, and never confused
with another."""

from __future__ import annotations

import importlib
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.model_resolver import resolve_model


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model "toy" in a place of its own, and an empty cache; gives the folder it was packed from."""
    folder = tmp_path / "made" / "toy"
    (folder / "part").mkdir(parents=True)
    (folder / "README.md").write_text("# toy\n")
    (folder / "part" / "weights").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(demo_models.pack(folder))
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demo_models._warn.cache_clear()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_packed_model_is_expanded_with_its_card(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = demo_models.folder_of("toy")
    assert contents(found) == contents(toy)
    assert "demo model toy" in capsys.readouterr().err


def test_a_demo_model_warns_once_in_a_process(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo_models.folder_of("toy")
    demo_models.folder_of("toy")
    assert capsys.readouterr().err.count("demo model toy") == 1


def test_of_several_ranks_one_warns(toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    demo_models.folder_of("toy")
    assert capsys.readouterr().err == ""


def test_the_files_about_an_archive_are_not_part_of_its_model(toy: Path, tmp_path: Path) -> None:
    (toy / demo_models.FIGURES).write_text("{}")
    (demo_models.IN_CLONE / "models" / "toy.zip").write_bytes(demo_models.pack(toy))
    found = demo_models.folder_of("toy")
    assert demo_models.belongs_to_archive(found / demo_models.FIGURES) and not demo_models.belongs_to_archive(found / "part" / "weights")
    assert not demo_models.belongs_to_archive(tmp_path / "exports" / demo_models.FIGURES), "a file of another model by that name"


def test_a_part_of_another_model_ships_once_and_is_in_both(toy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "talker"
    folder.mkdir()
    (folder / "README.md").write_text("# talker\n")
    (folder / demo_models.BUILT_ON).write_text('{"part": "toy"}')
    (demo_models.IN_CLONE / "models" / "talker.zip").write_bytes(demo_models.pack(folder))
    found = demo_models.folder_of("talker")
    assert contents(found) == {**contents(folder), "part/weights": contents(toy)["part/weights"]}
    (toy / "part" / "weights").write_bytes(b"another sound")
    (demo_models.IN_CLONE / "models" / "toy.zip").write_bytes(demo_models.pack(toy))
    again = demo_models.folder_of("talker")
    assert again != found and (again / "part" / "weights").read_bytes() == b"another sound"


def test_a_part_of_a_missing_model_is_named(toy: Path) -> None:
    (toy / demo_models.BUILT_ON).write_text('{"part": "gone"}')
    (demo_models.IN_CLONE / "models" / "toy.zip").write_bytes(demo_models.pack(toy))
    with pytest.raises(UserError, match=r"gone\.zip is missing"):
        demo_models.folder_of("toy")


def test_the_same_folder_gives_the_same_archive(toy: Path) -> None:
    first = demo_models.pack(toy)
    (toy / "README.md").touch()
    assert demo_models.pack(toy) == first


def test_an_archive_is_expanded_once_by_concurrent_processes(toy: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(demo_models.folder_of, ["toy"] * 8))
    assert len(found) == 1
    (folder,) = found
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    before = (folder / "part" / "weights").stat().st_mtime_ns
    assert (demo_models.folder_of("toy") / "part" / "weights").stat().st_mtime_ns == before


def test_another_archive_of_the_same_name_gets_another_folder(toy: Path) -> None:
    old = demo_models.folder_of("toy")
    (toy / "part" / "weights").write_bytes(b"new")
    (demo_models.IN_CLONE / "models" / "toy.zip").write_bytes(demo_models.pack(toy))
    assert (demo_models.folder_of("toy") / "part" / "weights").read_bytes() == b"new"
    assert (old / "part" / "weights").read_bytes() != b"new"


def test_a_cache_that_cannot_be_written_to_is_named(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in its place; a read-only home fails in the same way, but not for root."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"the demo model toy is unpacked to .*/file/overtone: .*; XDG_CACHE_HOME sets another cache"):
        demo_models.folder_of("toy")


def test_an_unknown_name_is_refused_with_the_known_ones(toy: Path) -> None:
    with pytest.raises(UserError, match="toyy: not a demo model; available: toy"):
        demo_models.folder_of("toyy")


def test_a_model_without_a_card_is_not_packed(toy: Path) -> None:
    (toy / "README.md").unlink()
    with pytest.raises(UserError, match="has no README.md"):
        demo_models.pack(toy)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation outside a clone; gives the folder where packages are installed."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path / "none")
    monkeypatch.syspath_prepend(str(site))
    return site


def test_an_installed_data_package_is_found_and_not_imported(toy: Path, wheel: Path, tmp_path: Path) -> None:
    package = wheel / demo_models.PACKAGE
    package.mkdir()
    (tmp_path / "models").rename(package / "models")
    assert demo_models.find_data() is None, "a folder that is no package may be anything"
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    importlib.invalidate_caches()
    assert demo_models.data_folder() == package and demo_models.names() == ["toy"]
    assert contents(demo_models.folder_of("toy")) == contents(toy)


def test_without_the_data_package_a_demo_model_is_known_and_its_place_is_named(wheel: Path) -> None:
    assert demo_models.is_demo_model("codec-demo") and not demo_models.is_demo_model("codec")
    for use in (demo_models.data_folder, lambda: demo_models.folder_of("codec-demo"), lambda: resolve_model("--model", "codec-demo")):
        with pytest.raises(UserError, match=r"codec-demo, .* are not in this installation; .*, run pip install \./workshop/overtone_demo$"):
            use()


def test_the_clone_has_the_models_that_are_known_without_it() -> None:
    assert demo_models.data_folder() == demo_models.IN_CLONE and demo_models.names() == [*demo_models.NAMES]
    project = demo_models.IN_CLONE.parent / "pyproject.toml"
    assert project.is_file(), "the path in the message can be installed"
    assert tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"] == demo_models.PACKAGE.replace("_", "-")
