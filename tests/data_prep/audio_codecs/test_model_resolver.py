"""Folders and names of models. Nothing is fetched here: what the hub would be asked for is."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from data_prep.audio_codecs.model_resolver import resolve_model
from finetune.errors import UserError
from finetune.storage import demo_models


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model("--model", str(tmp_path), ["*.json"]) == tmp_path


@pytest.mark.parametrize("name", ["nowhere", "./some/where", "/absent/folder", "a/b/c", "~/models"])
def test_what_is_neither_a_folder_nor_a_name_is_refused_without_asking(name: str) -> None:
    with pytest.raises(UserError, match=f"--of {name}: there is no such folder, and it is not a name"):
        resolve_model("--of", name, ["*.json"])


def test_only_the_files_that_are_needed_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert resolve_model("--model", "owner/name", ["config.json"]) == tmp_path
    assert asked == [("owner/name", None, ["config.json"])]


def test_a_hub_that_does_not_answer_is_reported_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    with pytest.raises(UserError, match=r"--model owner/name: .* download from the model hub failed .*no route.*give its folder"):
        resolve_model("--model", "owner/name", ["*.json"])


def test_a_demo_model_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "toy"
    made.mkdir()
    (made / "README.md").write_text("# toy\n")
    (tmp_path / "toy.zip").write_bytes(demo_models.pack(made))
    monkeypatch.setattr(demo_models, "HERE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (resolve_model("--model", "toy", ["*.json"]) / "README.md").read_text() == "# toy\n"
    with pytest.raises(UserError, match=r"nor a demo model \(toy\)"):
        resolve_model("--model", "tiy", ["*.json"])
