"""The copied files alone. What `llm_sft` exports with them is in `tests/recipes/language/exporting/test_export_plan.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.recipes.language import causal_lm_export_files
from tests.recipes.llm_sft import tiny_runs


def test_the_head_is_left_out_only_if_it_is_tied(tmp_path: Path) -> None:
    tied, untied = (tiny_runs.write_base(tmp_path / str(tied), tied=tied) for tied in (True, False))
    assert causal_lm_export_files.find_stored_weights(tied) == ({}, {"lm_head.weight"})
    assert causal_lm_export_files.find_stored_weights(untied) == ({}, frozenset())


def test_files_of_the_tokenizer_are_copied_and_private_ones_are_not(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE.txt", "notes.txt", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert causal_lm_export_files.list_copied_files(tmp_path) == ("LICENSE.txt", "chat_template.jinja", "tokenizer.json")
    assert causal_lm_export_files.list_copied_files(tmp_path, ("chat_template",)) == ("LICENSE.txt", "tokenizer.json")


def test_a_config_loses_what_leads_to_code_and_is_copied_otherwise(tmp_path: Path) -> None:
    plain = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    assert causal_lm_export_files.config_without_code(tmp_path) == {}
    (tmp_path / "config.json").write_text(json.dumps({**plain, "auto_map": {"AutoModel": "code.py"}}))
    assert json.loads(causal_lm_export_files.config_without_code(tmp_path)["config.json"]) == plain


@pytest.mark.parametrize("missing", [{}, {"architectures": None}, {"architectures": []}])
def test_a_config_without_the_name_of_a_class_gets_it(tmp_path: Path, missing: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **missing}))
    assert json.loads(causal_lm_export_files.config_without_code(tmp_path)["config.json"])["architectures"] == ["Qwen3ForCausalLM"]
