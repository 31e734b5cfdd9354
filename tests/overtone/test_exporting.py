"""`overtone.export`: the export of the verb."""

from __future__ import annotations

from pathlib import Path

import pytest

import overtone
from overtone.finetune.exporting import export
from overtone.finetune.monitoring.run_records import read_json
from tests.finetune import tiny
from tests.overtone.test_training import make_settings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> overtone.TrainingRun:
    return overtone.train(str(tiny.FOLDER), make_settings(tmp_path_factory.mktemp("runs")))


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "README.md"}  # which names the folder


def test_a_run_and_its_folder_give_the_export_of_the_verb(
    run: overtone.TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(tiny.FOLDER)
    folder = overtone.export(run, tmp_path / "mine", recipe=own)
    assert folder == tmp_path / "mine" and f"{folder} is ready\n" in capsys.readouterr().out
    assert read_files(folder) == read_files(export.export(run.folder, tmp_path / "verb", recipe=own))
    assert read_files(folder) == read_files(overtone.export(str(run.folder), tmp_path / "again", recipe=own))
    earlier = overtone.export(run, tmp_path / "earlier", step=2, strength=0.5, dtype="bf16", format="plain", recipe=own)
    assert read_json(earlier / "overtone.json").items() >= {"step": 2, "strength": 0.5, "format": "plain"}.items()


def test_what_cannot_be_exported_is_an_error(run: overtone.TrainingRun, tmp_path: Path) -> None:
    own = str(tiny.FOLDER)
    for given, message in (
        ({"step": 3}, "step"),
        ({"best": True, "step": 2}, "--best and --step 2: the selection chose step and strength"),
        ({"best": True}, "--best: no checkpoint of .* was selected yet"),
        ({"private": True}, "--private needs --push-to-hub NAME"),
        ({"adapter_only": True}, "--adapter-only: this run trained all weights"),
        ({"format": "gguf"}, "gguf"),
        ({"quantize": "f16"}, "--quantize f16: the format plain has the weights as they were trained"),
    ):
        with pytest.raises(overtone.UserError, match=message):
            overtone.export(run, tmp_path / "mine", recipe=own, **given)  # type: ignore[arg-type]
    with pytest.raises(overtone.UserError, match="no such folder"):
        overtone.export(tmp_path / "none", tmp_path / "mine")
    assert [*tmp_path.iterdir()] == []
