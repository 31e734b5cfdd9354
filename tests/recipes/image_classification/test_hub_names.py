"""A dataset and a model on the hub are used by their names, with the hub's client against a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from overtone.data_prep import __main__ as data_prep
from overtone.finetune.__main__ import main
from overtone.finetune.config import resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training.run import train
from overtone.recipes.image_classification.options import Options
from overtone.recipes.image_classification.recipe import RECIPE
from tests.finetune import fake_hub
from tests.finetune.fake_hub import COMMIT, Hub
from tests.launch.launching import series
from tests.recipes.image_classification import tiny_images
from tests.recipes.image_classification.tiny_images import LABELS, draw_image


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with fake_hub.opened() as opened:
        fake_hub.point_client_at(opened, tmp_path / "hf", monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield opened


def write_dataset(folder: Path) -> Path:
    """Parquet files of a training and a validation split, as `datasets` writes them, with a label as a ClassLabel; and a script."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": sorted(LABELS)}}
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())], metadata)
    (folder / "data").mkdir(parents=True)
    for split, numbers in (("train", range(4)), ("validation", range(20, 22))):
        rows = [{"image": encode(label, number), "label": at} for at, label in enumerate(sorted(LABELS)) for number in numbers]
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema), folder / "data" / f"{split}-00000-of-00001.parquet")
    (folder / "photos.py").write_text("raise SystemExit('ran')")
    return folder


def encode(label: str, number: int) -> dict[str, object]:
    written = BytesIO()
    draw_image(label, number).save(written, "PNG")
    return {"bytes": written.getvalue(), "path": None}


def test_a_dataset_and_a_base_on_the_hub_are_used_by_name(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("datasets/me/colours", write_dataset(tmp_path / "colours"))
    hub.add("me/tiny-vit", tiny_images.tiny_checkpoint.build(tmp_path / "vit"))
    assert data_prep.main(["images", "me/colours", "--out", "data"]) == 0
    assert "12 training and 6 validation images of 18; 3 labels" in capsys.readouterr().out
    row = json.loads(Path("data/train.jsonl").read_text().splitlines()[0])
    assert row["label"] in LABELS and Path("data", row["image"]).is_file()
    own = {"model.source": "me/tiny-vit", "data.train": "data/train.jsonl", "data.val": "data/val.jsonl", "run.dir": "run"}
    rest = {
        "train.steps": "1",
        "train.precision": "fp32",
        "train.micro_tokens": "6",
        "train.global_batch_tokens": "12",
        "log.trackers": "[]",
    }
    train(join((), tmp_path), resolve("image_classification", Options, [tiny_images.FOLDER / "config.yaml"], (own | rest).items()), RECIPE)
    leave()
    assert [event["loss"] > 0 for event in series(tmp_path / "run")] == [True]
    assert not list((tmp_path / "hf").rglob("*.py")), "code is not downloaded"
    assert any(COMMIT in path.parts for path in (tmp_path / "hf").rglob("*.parquet"))


def test_an_exported_model_on_the_hub_classifies_by_name(
    hub: Hub, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("me/colours-vit", exported)
    draw_image("red", 77, (50, 40)).save("photo.png")
    assert main(["generate", "--model", "me/colours-vit", "--image", "photo.png", "--top", "1"]) == 0
    assert "photo.png: red " in capsys.readouterr().out
