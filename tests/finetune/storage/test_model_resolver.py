"""Model folders and hub names. Nothing is downloaded: the calls to the hub are recorded."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.model_resolver import resolve_dataset, resolve_model


def test_a_local_folder_is_used_directly(tmp_path: Path) -> None:
    assert resolve_model("--model", str(tmp_path), ["*.json"]) == tmp_path


@pytest.mark.parametrize("name", ["nowhere", "./some/where", "/absent/folder", "a/b/c", "~/models"])
def test_a_value_that_is_neither_a_folder_nor_a_hub_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--of {name}: no such folder, and not a hub name"):
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
    with pytest.raises(
        UserError, match=r"--model owner/name: .* download from the hub failed: OSError: no route; check the network, or give"
    ):
        resolve_model("--model", "owner/name", ["*.json"])


def test_a_demo_model_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "toy"
    made.mkdir()
    (made / "README.md").write_text("# toy\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(demo_models.pack(made))
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (resolve_model("--model", "toy", ["*.json"]) / "README.md").read_text() == "# toy\n"
    with pytest.raises(UserError, match=r"nor a demo model \(toy\)"):
        resolve_model("--model", "tiy", ["*.json"])


def test_a_dataset_is_a_path_or_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hub(name: str, repo_type: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        return str(tmp_path / "none") if name == "me/empty" else str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert resolve_dataset("source", "me/chats", ["*.jsonl"]) == tmp_path
    assert resolve_dataset("source", str(tmp_path / "rows.jsonl"), ["*.jsonl"]) == tmp_path / "rows.jsonl"
    with pytest.raises(UserError, match=r"source me/empty: the dataset on the hub has none of the files \*.jsonl"):
        resolve_dataset("source", "me/empty", ["*.jsonl"])


@pytest.mark.parametrize("name", ["exports/me", "runs/voice_clone", "data/me", "here/model", "my exports/me", "a/..", "-x/y"])
def test_a_missing_local_folder_is_never_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise whoever registers the name `exports` on the hub would supply the model."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(UserError, match="no such folder, and not a hub name") as caught:
        resolve_model("--model", name, ["*.json"])
    assert ("overtone export RUN --to exports/me" in str(caught.value)) == (name == "exports/me")
    assert resolve_dataset("source", name, ["*.json"]) == Path(name)
