"""Downloads from the hub are data of one commit; tested with the hub's client against a hub on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from finetune.storage.hub_download import commit_of, display_name, download
from finetune.storage.model_resolver import MODEL_FILES
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
from finetune.storage import hub_download; from finetune.modeling import loading as models
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


def test_only_a_snapshot_of_the_hub_has_a_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "snapshots" / COMMIT) == COMMIT
    assert commit_of(tmp_path / COMMIT) is None and commit_of(tmp_path / "snapshots" / "main") is None
    assert MODEL_FILES


def test_a_download_is_shown_by_the_name_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert display_name(tmp_path / "models--me--my-voice" / "snapshots" / COMMIT) == "my-voice"
    assert display_name(tmp_path / "mine") == "mine" and display_name(tmp_path / "snapshots" / COMMIT) == COMMIT
