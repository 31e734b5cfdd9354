"""An export is a folder that stock transformers loads, with equal logits and the labels of the data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForImageClassification, pipeline

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.exporting import export
from overtone.finetune.training import setup
from overtone.recipes.image_classification.exporting.export_plan import plan_export
from overtone.recipes.image_classification.image_processing import prepare_view
from overtone.recipes.image_classification.recipe import RECIPE
from overtone.recipes.image_classification.state import ClassifierState
from tests.recipes.image_classification.tiny_images import LABELS, LORA, draw_image, make_config, train_here

PHOTOS = [draw_image(label, seed, size) for label, seed, size in (("red", 90, (33, 50)), ("green", 91, (16, 16)), ("blue", 92, (70, 20)))]


def compute_trained_logits(run: Path, copy: Path, *overrides: tuple[str, str]) -> Tensor:
    """What the training's own model, resumed in a copy of the run from its last checkpoint, says of the photos."""
    shutil.copytree(run, copy)
    config = make_config(run.parent, ("run.dir", str(copy)), *overrides)
    training, _ = setup.build(config, RECIPE, join((), run.parent))
    pixels = torch.stack([prepare_view(training.loaded.processor.processor, photo) for photo in PHOTOS])
    training.model.eval()
    found: list[Tensor] = []
    classifier = training.model.classifier
    hook = classifier.register_forward_hook(lambda _, __, logits: found.append(logits))  # type: ignore[operator, union-attr]
    with torch.no_grad():
        training.model({"pixels": pixels, "labels": torch.zeros(len(PHOTOS), dtype=torch.int64)})
    hook.remove()
    leave()
    return found[0]


def compute_stock_logits(folder: Path) -> Tensor:
    processor, model = AutoImageProcessor.from_pretrained(folder), AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits: Tensor = model(**processor(PHOTOS, return_tensors="pt")).logits
    return logits


def test_stock_transformers_computes_the_logits_of_the_training(full_run: Path, exported: Path, tmp_path: Path) -> None:
    trained = compute_trained_logits(full_run, tmp_path / "run", ("train.steps", "30"))
    torch.testing.assert_close(compute_stock_logits(exported), trained, rtol=0, atol=1e-5)
    assert trained.std() > 0.5


OTHER_MODELS: dict[str, dict[str, Any]] = {
    "convnext": {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 2], "patch_size": 2, "image_size": 16},
    "dinov2": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
    "swin": {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4},
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_other_architectures_are_trained_and_exported_with_equal_logits(kind: str, tmp_path: Path) -> None:
    """From a backbone without an output layer, as the released ones are."""
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(kind, **OTHER_MODELS[kind])).save_pretrained(tmp_path / "base")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (tmp_path / "base" / "preprocessor_config.json").write_text(json.dumps(settings))
    run = train_here(tmp_path, ("train.steps", "2"))
    folder = export.export(run, tmp_path / "export")
    trained = compute_trained_logits(run, tmp_path / "copy", ("train.steps", "2"))
    torch.testing.assert_close(compute_stock_logits(folder), trained, rtol=0, atol=1e-6)
    labels, found = sorted(LABELS), pipeline("image-classification", model=str(folder), device="cpu")(PHOTOS, top_k=3)
    shares = torch.tensor([[{each["label"]: each["score"] for each in photo}[label] for label in labels] for photo in found])
    torch.testing.assert_close(shares, trained.softmax(-1), rtol=0, atol=1e-6)
    base, written = load_file(tmp_path / "base" / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = [name for name, value in base.items() if not torch.equal(written[f"{kind}.{name}"], value)]
    assert len(changed) > len(base) / 2, "the layers of the backbone are trained"


def test_the_head_and_the_adapters_of_a_lora_run_are_in_the_export(lora_run: Path, tmp_path: Path) -> None:
    folder = export.export(lora_run, lora_run.parent / "export")
    torch.testing.assert_close(compute_stock_logits(folder), compute_trained_logits(lora_run, tmp_path / "run", *LORA), rtol=0, atol=1e-5)
    with rank_shards.open_shards(checkpoint.find(lora_run)) as (read, shapes):
        trained = {name: read(name, None) for name in shapes if not name.startswith("optimizer.")}
    assert {"classifier.weight", "classifier.bias"} < trained.keys() and any(".lora_A." in name for name in trained)
    assert not any(name.startswith("classifier.lora") for name in trained), "all of the head is trained, so it has no adapter"


def test_the_pipeline_names_the_labels(exported: Path) -> None:
    classify = pipeline("image-classification", model=str(exported), device="cpu")
    assert [found[0]["label"] for found in classify(PHOTOS, top_k=1)] == ["red", "green", "blue"]
    config = json.loads((exported / "config.json").read_text())
    assert config["id2label"] == dict(zip("012", sorted(LABELS), strict=True)) and config["architectures"] == ["ViTForImageClassification"]
    card = (exported / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card and "12 images" in card


def test_the_names_are_those_of_the_stock_class_though_the_base_has_no_prefix(full_run: Path, exported: Path) -> None:
    base, written = load_file(full_run.parent / "base" / "model.safetensors"), load_file(exported / "model.safetensors")
    assert {f"vit.{name}" for name in base} | {"classifier.weight", "classifier.bias"} == written.keys()
    assert all(not torch.equal(written[f"vit.{name}"], value) for name, value in base.items())


def test_an_export_is_a_base_whose_head_can_be_kept(exported: Path, tmp_path: Path) -> None:
    make_config(tmp_path)
    shutil.rmtree(tmp_path / "base")
    shutil.copytree(exported, tmp_path / "base")
    run = train_here(tmp_path, ("options.head", "base"), ("train.steps", "1"), ("train.lr", "1e-9"))
    again = export.export(run, tmp_path / "export")
    torch.testing.assert_close(compute_stock_logits(again), compute_stock_logits(exported), rtol=0, atol=1e-4)
    fresh = train_here(tmp_path, ("run.dir", str(tmp_path / "fresh")), ("train.steps", "1"))
    written = load_file(export.export(fresh, tmp_path / "export-fresh") / "model.safetensors")
    assert not torch.allclose(written["classifier.weight"], load_file(exported / "model.safetensors")["classifier.weight"], atol=0.01)


def test_files_that_could_run_code_are_not_in_an_export(full_run: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(full_run.parent / "base", base)
    config: dict[str, Any] = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "evil.Config"}}))
    (base / "evil.py").write_text("raise SystemExit('run')")
    plan = plan_export(base, ClassifierState(labels=["a", "b"]))
    assert b"auto_map" not in plan.files["config.json"] and plan.copy == ("preprocessor_config.json",)


def test_extra_tensors_of_the_base_are_left_out(tmp_path: Path) -> None:
    make_config(tmp_path)
    weights = tmp_path / "base" / "model.safetensors"
    save_file({**load_file(weights), "pooler.dense.weight": torch.zeros(64, 64)}, weights)
    folder = export.export(train_here(tmp_path, ("train.steps", "1")), tmp_path / "export")
    assert not any("pooler" in name for name in load_file(folder / "model.safetensors"))
