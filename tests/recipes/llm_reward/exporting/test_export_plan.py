"""An export is a folder that stock transformers loads, with the values of the training, the names of the classes and the padding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.training import setup
from overtone.recipes.llm_reward.exporting.export_plan import plan_export
from overtone.recipes.llm_reward.recipe import RECIPE
from overtone.recipes.llm_reward.sequence_losses import collate
from overtone.recipes.llm_reward.state import RewardState
from tests.recipes.llm_reward.tiny_scorers import CLASSES, LABELLED, LORA, make_config, train_here

TEXTS = ["yes 7", "no no no 1<|im_end|>", "Perhaps. I am a machine."]


def compute_trained_values(run: Path, copy: Path, *overrides: tuple[str, str]) -> Tensor:
    """Values of `TEXTS` by the training's own model, resumed in a copy of the run from its last checkpoint."""
    shutil.copytree(run, copy)
    config = make_config(run.parent, ("run.dir", str(copy)), *overrides)
    training, _ = setup.build(config, RECIPE, join((), run.parent))
    processor: Any = training.loaded.processor
    rows = [processor.tokenizer(text)["input_ids"] for text in TEXTS]
    rows = [ids[:-1] if ids[-1] == processor.pad else ids for ids in rows]
    batch = collate([{"ids": torch.tensor(ids), "label": torch.tensor(0), "classes": torch.tensor(1)} for ids in rows])
    training.model.eval()
    with torch.no_grad():
        values: Tensor = training.model(batch.tensors, batch.lengths)
    leave()
    return values


def compute_stock_values(folder: Path, model: Any = None) -> Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = model or AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        values: Tensor = model.eval()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    return values


def test_stock_transformers_computes_the_rewards_of_the_training(reward_run: Path, reward_export: Path, tmp_path: Path) -> None:
    trained = compute_trained_values(reward_run, tmp_path / "run")
    torch.testing.assert_close(compute_stock_values(reward_export), trained, rtol=0, atol=1e-5)
    assert trained.shape == (3, 1) and trained.std() > 0.05
    config, tokenizer = json.loads((reward_export / "config.json").read_text()), AutoTokenizer.from_pretrained(reward_export)
    assert config["architectures"] == ["Qwen3ForSequenceClassification"] and config["problem_type"] == "regression"
    assert config["id2label"] == {"0": "reward"} and config["pad_token_id"] == tokenizer.pad_token_id == tokenizer.eos_token_id
    score = pipeline("text-classification", model=str(reward_export), device="cpu")(TEXTS[0])
    assert score == [{"label": "reward", "score": pytest.approx(float(trained[0, 0]), abs=1e-5)}]


def test_head_and_adapters_of_a_classifier_are_merged(class_run: Path, class_export: Path, tmp_path: Path) -> None:
    overrides = (*CLASSES, *LORA, ("data.packing", "false"))
    trained = compute_trained_values(class_run, tmp_path / "run", *overrides)
    torch.testing.assert_close(compute_stock_values(class_export), trained, rtol=0, atol=1e-5)
    with rank_shards.open_shards(checkpoint.find(class_run)) as (_, shapes):
        names = {name for name in shapes if not name.startswith("optimizer.")}
    assert "score.weight" in names and any(".lora_A." in name for name in names) and not any("score.lora" in name for name in names)
    config = json.loads((class_export / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "open"} and config["problem_type"] == "single_label_classification"


@pytest.mark.slow
def test_peft_loads_the_adapter_alone(class_run: Path, class_export: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForSequenceClassification

    folder = export.export(class_run, tmp_path / "adapter", adapter_only=True)
    pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    model = AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=3, pad_token_id=pad, dtype=torch.float32)
    torch.testing.assert_close(compute_stock_values(folder, model), compute_stock_values(class_export), rtol=0, atol=1e-5)


def test_the_output_head_of_the_base_is_left_out(reward_run: Path, reward_export: Path) -> None:
    base, written = load_file(reward_run.parent / "base" / "model.safetensors"), load_file(reward_export / "model.safetensors")
    assert {*base} - {"lm_head.weight"} | {"score.weight"} == written.keys() and "lm_head.weight" in base


@pytest.mark.slow
def test_an_export_is_a_base_whose_head_can_be_kept(reward_export: Path, class_export: Path, tmp_path: Path) -> None:
    shutil.copytree(reward_export, tmp_path / "base")
    kept = (("options.head", "base"), ("train.steps", "1"), ("train.lr", "1e-9"))
    again = export.export(train_here(tmp_path, *kept), tmp_path / "export")
    torch.testing.assert_close(compute_stock_values(again), compute_stock_values(reward_export), rtol=0, atol=1e-4)
    fresh = load_file(
        export.export(train_here(tmp_path, *kept[1:], ("run.dir", str(tmp_path / "fresh"))), tmp_path / "new") / "model.safetensors"
    )
    assert not torch.allclose(fresh["score.weight"], load_file(reward_export / "model.safetensors")["score.weight"], atol=0.01)
    with pytest.raises(UserError, match="the base does not know the label 'bad'"):
        train_here(tmp_path, *CLASSES, *kept, ("run.dir", str(tmp_path / "classes")))
    with pytest.raises(UserError, match=r"has no score.weight with 1 outputs; give an export of this recipe with the same objective"):
        train_here(tmp_path, *kept, ("model.source", str(class_export)), ("run.dir", str(tmp_path / "other")))


def test_with_adapters_the_head_of_the_base_stays(class_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(class_export, tmp_path / "base")
    rows = [row for row in LABELLED if row["label"] != "open"]
    run = train_here(tmp_path, *CLASSES, *LORA, ("options.head", "base"), ("train.steps", "1"), rows=rows)
    written = load_file(export.export(run, tmp_path / "export") / "model.safetensors")
    assert torch.equal(written["score.weight"], load_file(class_export / "model.safetensors")["score.weight"])
    assert "head: that of the base, frozen" in capsys.readouterr().out
    assert json.loads((tmp_path / "export" / "config.json").read_text())["id2label"]["2"] == "open"


def test_a_given_template_and_no_code_are_in_an_export(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    config: dict[str, Any] = json.loads((tmp_path / "base" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "evil.Config"}, "num_labels": 7}))
    (tmp_path / "base" / "generation_config.json").write_text("{}")
    plan = plan_export(tmp_path / "base", RewardState(chat_template="{{ 1 }}", objective="preference", centering=0.0, labels=[]))
    assert b"auto_map" not in plan.files["config.json"] and b"num_labels" not in plan.files["config.json"]
    assert plan.files["chat_template.jinja"] == b"{{ 1 }}" and "chat_template.jinja" not in plan.copy
    assert "generation_config.json" not in plan.copy and "tokenizer.json" in plan.copy
    settings = json.loads(plan.files["tokenizer_config.json"])
    assert (settings["pad_token"], settings["padding_side"]) == ("<|im_end|>", "right")
    assert {*plan.adapter_files} >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
