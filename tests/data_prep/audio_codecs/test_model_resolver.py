"""Model folders and hub names. Nothing is downloaded: the calls to the hub are recorded."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from data_prep.audio_codecs.model_resolver import resolve_model
from finetune.errors import UserError
from finetune.storage import demo_models


def test_a_local_folder_is_used_directly(tmp_path: Path) -> None:
    assert resolve_model("--model", str(tmp_path), ["*.json"]) == tmp_path


@pytest.mark.parametrize("name", ["nowhere", "./some/where", "/absent/folder", "a/b/c", "~/models"])
def test_a_value_that_is_neither_a_folder_nor_a_hub_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--of {name}: there is no such folder, and it is not a name"):
        resolve_model("--of", name, ["*.json"])


def test_only_the_needed_files_are_requested_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert resolve_model("--model", "owner/name", ["config.json"]) == tmp_path
    assert asked == [("owner/name", None, ["config.json"])]


def test_a_failed_download_is_reported_with_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    with pytest.raises(UserError, match=r"--model owner/name: .* download from the model hub failed .*no route.*give its folder"):
        resolve_model("--model", "owner/name", ["*.json"])


def test_a_demo_model_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "toy"
    made.mkdir()
    (made / "README.md").write_text("# toy\n")
    (tmp_path / "toy.zip").write_bytes(demo_models.pack(made))
    monkeypatch.setattr(demo_models, "HERE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (resolve_model("--model", "toy", ["*.json"]) / "README.md").read_text() == "# toy\n"
    with pytest.raises(UserError, match=r"nor a demo model \(toy\)"):
        resolve_model("--model", "tiy", ["*.json"])
