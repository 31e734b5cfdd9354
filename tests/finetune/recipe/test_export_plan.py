"""Tests of `overtone.finetune.recipe.export_plan`."""

from __future__ import annotations

from overtone.finetune.recipe import ExportPlan


def test_by_default_every_tensor_keeps_its_name_and_is_written() -> None:
    plan = ExportPlan()
    assert plan.translate_name("model.embed_tokens.weight") == "model.embed_tokens.weight" and plan.keep("anything")
    assert plan.conversion is None and not (plan.edit or plan.files or plan.copy or plan.adapter_files)
