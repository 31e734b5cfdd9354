"""The recipe's interface: config files, plan, rows that are refused, and what a run learns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune.cli import plan
from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.planning.data_preview import preview_data
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.recipes.image_classification.options import Options
from overtone.recipes.image_classification.recipe import RECIPE
from overtone.recipes.transformers_release import describe_old_release
from tests.recipes.image_classification.tiny_images import FOLDER, make_config, train_here, write_images, write_rows


def test_the_recipe_is_found_by_name() -> None:
    assert find_recipe("image_classification") == FOLDER and load_recipe(FOLDER) is RECIPE


def test_the_config_files_are_valid() -> None:
    real = resolve("image_classification", Options, [FOLDER / "config.yaml"], [])
    assert real.model.source == "google/vit-base-patch16-224-in21k" and real.checkpoint.best_by is None
    debug = resolve("image_classification", Options, [FOLDER / "config.yaml", FOLDER / "debug.yaml"], [])
    assert debug.options.flip is False and debug.train.precision == "fp32"


def test_a_run_learns_and_measures_the_accuracy_of_held_out_images(full_run: Path) -> None:
    evaluations = [event for event in read_log(full_run / LOG) if event["event"] == "evaluation"]
    assert evaluations[0]["val/accuracy"] < 0.9 < evaluations[-1]["val/accuracy"] == 1.0
    steps = [event for event in read_log(full_run / LOG) if event["event"] == "step"]
    assert steps[0]["tokens"] == 12 and steps[-1]["loss"] < steps[0]["loss"] / 2


def test_the_same_seed_gives_the_same_run_and_another_one_other_crops(tmp_path: Path) -> None:
    losses = []
    for number, seed in enumerate(("0", "0", "1")):
        run = train_here(tmp_path, ("run.dir", str(tmp_path / f"run{number}")), ("run.seed", seed), ("train.steps", "2"))
        losses.append([event["loss"] for event in read_log(run / LOG) if event["event"] == "step"])
    assert losses[0] == losses[1] != losses[2]


def test_a_plan_needs_no_data_and_counts_the_head_of_the_labels(tmp_path: Path) -> None:
    config = make_config(tmp_path, ("train.micro_tokens", "16"))
    foreseen = estimate_run(config, RECIPE)
    assert foreseen.misfits == () and foreseen.unit == "images" and foreseen.remarks[1:] == describe_old_release()
    one, more = (foreseen.activations(count, "none", 1) for count in (8, 16))
    assert (one.positions, more.positions) == (8, 16) and more.flops == pytest.approx(2 * one.flops, rel=0.05)
    seen = preview_data(config, RECIPE, foreseen.processor())
    assert seen.rows == 12 and seen.positions == 12 and seen.problems == ()
    without = config.model_copy(update={"data": config.data.model_copy(update={"train": None, "val": None})})
    assert foreseen.outline.total - estimate_run(without, RECIPE).outline.total == 65, "the base has two labels, the data three"


def test_show_batch_prints_labels_and_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path)
    assert plan.main(["--recipe", "image_classification", "--show-batch", *words_of(tmp_path), "--run.dir", str(config.run.dir)]) == 0
    printed = capsys.readouterr().out
    assert "the first micro-batch: 4 of 12 rows, 4 images" in printed and "label 'red'; 16 × 16 pixels, crops from" in printed


def words_of(folder: Path) -> list[str]:
    sizes = ["--train.precision", "fp32", "--train.micro_tokens", "6"]
    return ["--model.source", str(folder / "base"), "--data.train", str(folder / "train.jsonl"), *sizes]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "images/red-0.png", "label": "violet"}, r"val\.jsonl:7: \"label\" is 'violet', which is not among the 3 labels"),
        ({"image": "images/gone.png", "label": "red"}, r"val\.jsonl:7: 'images/gone.png' cannot be read in .*No such file"),
        ({"image": "../secret.png", "label": "red"}, r"val\.jsonl:7: '../secret.png' leads outside of"),
        ({"image": "val.jsonl", "label": "red"}, r"val\.jsonl:7: the image 'val.jsonl' cannot be decoded"),
        ({"label": "red"}, r"val\.jsonl:7: \"image\" must be the path of a file"),
        ({"image": "images/red-0.png", "label": 3.5}, r"val\.jsonl:7: \"label\" must be the name of a class, found 3.5"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_its_line(row: dict[str, object], message: str, tmp_path: Path) -> None:
    make_config(tmp_path)
    with (tmp_path / "val.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=message):
        train_here(tmp_path)


def test_a_base_of_another_kind_is_refused(tmp_path: Path) -> None:
    make_config(tmp_path)
    (tmp_path / "base" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(UserError, match="model_type 'qwen3' is not an image classifier of transformers"):
        train_here(tmp_path)


def test_a_base_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    make_config(tmp_path)
    (tmp_path / "base" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="has no preprocessor_config.json"):
        train_here(tmp_path)


def test_an_image_that_changed_is_read_again(tmp_path: Path) -> None:
    run = train_here(tmp_path, ("train.steps", "2"))
    before = sorted(path.stat().st_mtime_ns for path in (run / "cache").glob("train-*.samples"))
    shutil.copy(tmp_path / "images" / "red-1.png", tmp_path / "images" / "red-0.png")
    train_here(tmp_path, ("train.steps", "4"))
    assert sorted(path.stat().st_mtime_ns for path in (run / "cache").glob("train-*.samples")) != before


def test_a_path_with_spaces_works(tmp_path: Path) -> None:
    folder = tmp_path / "my photos"
    folder.mkdir()
    rows = [json.loads(line) for line in write_images(folder).read_text().splitlines()]
    for row in rows[:1]:
        (folder / row["image"]).rename(folder / "a b.png")
        row["image"] = "a b.png"
    write_rows(folder / "train.jsonl", rows)
    write_images(folder, 2, "val", first=20)
    assert (train_here(folder, ("train.steps", "1")) / "checkpoints").is_dir()
