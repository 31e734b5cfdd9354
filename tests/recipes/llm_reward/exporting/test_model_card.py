"""Tests of `overtone.recipes.llm_reward.exporting.model_card`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.llm_reward.exporting.model_card import describe_output


def test_the_card_has_the_output_the_data_and_the_use(reward_export: Path, class_export: Path) -> None:
    reward, classes = ((folder / "README.md").read_text() for folder in (reward_export, class_export))
    assert "pipeline_tag: text-classification" in reward and "- reward-model" in reward and "one reward for a sequence" in reward
    assert "`rows.jsonl`, 4 rows" in reward and "num_labels=1" in reward and "AutoModelForSequenceClassification" in reward
    assert "head = model.score.float()" in reward and "head.register_forward_pre_hook(" in reward
    assert "| Output | 3 classes: bad, good, open |" in classes and "LoRA of rank 4, alpha 8, merged; new: score.weight" in classes
    assert str(reward_export.parent) not in reward, "no path of the machine"


def test_names_of_classes_cannot_break_the_table() -> None:
    assert describe_output(["a|b", "c\nd"]) == "2 classes: a\\|b, c d"
    assert describe_output([str(number) for number in range(30)]).endswith("18, 19, …")
