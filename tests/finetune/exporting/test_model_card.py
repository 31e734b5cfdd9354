"""An export of a recipe without a card of its own has one: what the model was made from, and no paths on the machine of the training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from overtone.finetune.config import dump
from overtone.finetune.exporting import export, model_card
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.finetune.recipe import ExportPlan
from tests.finetune import tiny

COMMIT = "0123456789" * 4
ON_HUB = {"source": "me/base", "revision": COMMIT, "digest": "ef" * 32}


def render(tmp_path: Path, metadata: dict[str, Any] | None = None, inherited: dict[str, Any] | None = None, **changes: Any) -> str:
    config = tiny.config_in(tmp_path, ("data.val", str(tmp_path / "held_out.jsonl")), ("train.lr", "0.5"))
    return model_card.render_card(tiny.state(1200, **changes), dump(config), inherited or {}, metadata or {}, ("--text", "Hi."), "bytes")


def test_the_card_names_recipe_base_data_steps_and_loss(tmp_path: Path) -> None:
    text = render(
        tmp_path, {"library_name": "timm", "pipeline_tag": "image-classification"}, {"license": "mit"}, base=ON_HUB, validation_loss=0.5
    )
    for line in (
        "| Recipe | `byte_model` |",
        f"| Base | me/base@{COMMIT} |",
        "| Data | `train.jsonl`, 20 rows, 400 bytes |",
        "| Data's content | SHA-256 `mine` |",
        "| Trained | all weights |",
        "| Steps | 1,200 |",
        "| Validation loss | 0.5000 |",
        f"overtone generate --model {THIS_MODEL} --text Hi. --recipe byte_model\n",
        "  lr: 0.5\n",
        "  dropout: 0.1\n",
    ):
        assert line in text, line
    assert str(tmp_path) not in text and str(tiny.FOLDER) not in text and "could not be read" not in text
    found = ModelCard(text).data
    assert (found.library_name, found.license, found.base_model, found.tags) == ("timm", "mit", "me/base", ["byte_model"])
    assert found.eval_results is not None
    assert [(one.task_type, one.metric_type, one.metric_value) for one in found.eval_results] == [("image-classification", "loss", 0.5)]


def test_what_is_unknown_is_not_in_the_header(tmp_path: Path) -> None:
    text = render(tmp_path, lora={"rank": 4, "alpha": 8.0, "dora": False}, added=["head.weight"])
    assert "| Validation loss | not measured at this step |" in text and "it could not be read from the base's model card" in text
    assert "| Trained | LoRA of rank 4, alpha 8, merged; new: head.weight |" in text
    assert set(ModelCard(text).data.to_dict()) == {"tags"}


@pytest.mark.parametrize("value", ["/home/me/labels.txt", "~/labels.txt", "../labels.txt", ["/home/me/labels.txt"], {"a": "/x/labels.txt"}])
def test_of_a_path_among_the_options_only_the_last_part_is_shown(value: Any) -> None:
    settings = {"model": {"source": "a"}, "data": {"train": "b"}, "train": {}, "options": {"labels": value}}
    shown = str(model_card.public_settings(settings))
    assert "labels.txt" in shown and "/" not in shown


def test_a_card_of_the_recipes_own_is_not_replaced(tmp_path: Path) -> None:
    def never(*_: object, **__: object) -> str:
        raise AssertionError("the recipe has a card")

    for plan in (ExportPlan(files={"README.md": b"mine"}), ExportPlan(copy=("README.md",))):
        assert export.add_readme(plan, tmp_path, tiny.state(1), "name", never) == plan
    own = ExportPlan(readme=lambda state, config: f"{state['step']} {config[:4]}")
    tiny.write_rows(tmp_path / "train.jsonl", ["abc"])
    (tmp_path / "config.yaml").write_text(dump(tiny.config_in(tmp_path)))
    assert replace(own, readme=None).readme is None
    assert export.add_readme(own, tmp_path, tiny.state(7), "name", never).files["README.md"].startswith(b"7 ")
