"""Only the chosen configurations of a dataset on the hub are read, each file with its split; the choices are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.hub_dataset_download import download_dataset_files
from overtone.finetune.errors import UserError
from tests.finetune import fake_hub

CARD = (
    b"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/t*\n- config_name: extra\n  data_dir: more\n---\n"
)
ROWS = {"main/train.jsonl": b"{}", "more/train.jsonl": b"{}", "more/test.jsonl": b"{}", "more/config.json": b"{}", "more/run.py": b"1"}


def names(dataset: str, *configs: str) -> list[tuple[str, str]]:
    found = download_dataset_files("source", dataset, ("*.jsonl", "*.json"), configs)
    assert found is not None
    return [(file.name, file.split) for file in found]


@pytest.mark.parametrize("card", [CARD, b"# none"])
def test_a_configuration_must_be_chosen_if_there_are_several(card: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        hub.repositories["datasets/me/two"] = {"README.md": card, **ROWS}
        hub.repositories["datasets/me/one"] = {"data/train.jsonl": b"{}", "data/validation.jsonl": b"{}"}
        both = "main, extra" if card == CARD else "main, more"
        with pytest.raises(UserError, match=f"source me/two has several configurations: {both}; choose with --config NAME"):
            names("me/two")
        with pytest.raises(UserError, match=f"--config no: source me/two has no such configuration; it has {both}"):
            names("me/two", "no")
        assert names("me/two", both.rpartition(" ")[2]) == [("more/test.jsonl", "test"), ("more/train.jsonl", "train")]
        assert names("me/two", *both.split(", "))[0] == ("main/train.jsonl", "train")
        assert names("me/one") == [("data/train.jsonl", "train"), ("data/validation.jsonl", "validation")]
    assert download_dataset_files("source", str(tmp_path), ("*.jsonl",), ()) is None
