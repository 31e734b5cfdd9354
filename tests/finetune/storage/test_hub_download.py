"""Downloads from the hub are data of one commit; tested with the hub's client against a hub on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import commit_of, display_name, download
from overtone.finetune.storage.model_resolver import MODEL_FILES, resolve_model
from tests.finetune import fake_hub, fork_server
from tests.finetune.fake_hub import COMMIT

REPOSITORY = {
    "config.json": json.dumps({"model_type": "llama", "auto_map": {"AutoConfig": "code.C"}}).encode(),
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "code.py": b"raise SystemExit('ran')",
    "pytorch_model.bin": b"pickle",
    "speech_tokenizer/config.json": b"{}",
    "speech_tokenizer/evil.py": b"raise SystemExit('ran')",
}
SCRIPT = """
from overtone.finetune.storage import hub_download; from overtone.finetune.modeling import loading as models
folder = models.resolve_source("me/model", None)
print(folder, hub_download.commit_of(folder))
print(models.resolve_source("me/model", hub_download.commit_of(folder)))
"""


def test_data_of_one_commit_is_downloaded_and_no_code(tmp_path: Path) -> None:
    with fake_hub.opened() as hub:
        hub.repositories["me/model"] = REPOSITORY
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        given = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = fork_server.run_command("-c", SCRIPT, env=kept | given, fresh=("huggingface_hub",))
    assert done.returncode == 0, done.stderr
    (first, second) = done.stdout.splitlines()
    folder = Path(first.split()[0])
    assert first.split()[1] == COMMIT and folder.name == COMMIT and second == str(folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"config.json", "model.safetensors", "tokenizer.json", "speech_tokenizer/config.json"}
    assert not list(tmp_path.rglob("*.py")) and not list(tmp_path.rglob("*.bin"))


@pytest.mark.parametrize("pattern", ["*", "*.py", "speech_tokenizer/*", "*.bin", "*.pt", "model*"])
def test_a_pattern_that_may_match_code_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="may match code or pickles"):
        download("me/model", None, ["*.json", pattern])


SHARDS = ("one.safetensors", "two.safetensors")


def make_index(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"weight{number}": name for number, name in enumerate(names)}}).encode()


REPOSITORIES = {
    "named-by-config": (
        {"config.json": b'{"transformers_weights": "transformers.safetensors.index.json"}', "model.safetensors": b"of the makers"}
        | {"transformers.safetensors.index.json": make_index(*SHARDS), **dict.fromkeys(SHARDS, b"shard")},
        {*SHARDS},
    ),
    "indexed": (
        {"config.json": b"{}", "model.safetensors.index.json": make_index(*SHARDS), "consolidated.safetensors": b"of the makers"}
        | {"consolidated.safetensors.index.json": make_index("consolidated.safetensors"), **dict.fromkeys(SHARDS, b"shard")},
        {*SHARDS},
    ),
    "single": ({"config.json": b"{}", "model.safetensors": b"all", "consolidated.safetensors": b"of the makers"}, {"model.safetensors"}),
    "with-parts": (
        {"config.json": b"{}", "model.safetensors": b"all", "speech_tokenizer/model.safetensors": b"a part"},
        {"model.safetensors", "speech_tokenizer/model.safetensors"},
    ),
    "other-names": ({"config.json": b"{}", **dict.fromkeys(SHARDS, b"shard")}, {*SHARDS}),
    "index-of-absent-files": (
        {"config.json": b"{}", "model.safetensors.index.json": make_index("absent.safetensors"), **dict.fromkeys(SHARDS, b"shard")},
        {*SHARDS},
    ),
    "named-outside": ({"config.json": b'{"transformers_weights": "../one.safetensors.index.json"}', "one.safetensors": b"1"}, {SHARDS[0]}),
}


@pytest.mark.parametrize("name", list(REPOSITORIES))
def test_of_two_sets_of_weights_only_the_one_that_is_loaded_is_downloaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sesame/csm-1b has its weights twice, 6 GB each."""
    held, expected = REPOSITORIES[name]
    with fake_hub.opened() as hub:
        hub.repositories["me/model"] = held
        fake_hub.point_client_at(hub, tmp_path, monkeypatch)
        folder = resolve_model("--model", "me/model")
        again = resolve_model("--model", "me/model", revision=commit_of(folder))
    assert again == folder and {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")} == expected


def test_an_index_that_names_other_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub.opened() as hub:
        hub.repositories["me/model"] = {"config.json": b"{}", "model.safetensors.index.json": make_index("../code.py")}
        fake_hub.point_client_at(hub, tmp_path, monkeypatch)
        with pytest.raises(UserError, match=r"--model me/model: .*weight_map names .*code.py.*, which is not a safetensors file"):
            resolve_model("--model", "me/model")


def test_only_a_snapshot_of_the_hub_has_a_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "snapshots" / COMMIT) == COMMIT
    assert commit_of(tmp_path / COMMIT) is None and commit_of(tmp_path / "snapshots" / "main") is None
    assert MODEL_FILES


def test_a_download_is_shown_by_the_name_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert display_name(tmp_path / "models--me--my-voice" / "snapshots" / COMMIT) == "my-voice"
    assert display_name(tmp_path / "mine") == "mine" and display_name(tmp_path / "snapshots" / COMMIT) == COMMIT
