"""Tests of `overtone.recipes.language.exporting.export_plan`: the export has the trained weights bit by bit, and needs no code of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import lora_adapters
from overtone.finetune.recipe import ExportPlan
from overtone.recipes.language.exporting.export_plan import TRANSFORMERS, plan_chat_export
from overtone.recipes.language.exporting.model_card import Objective
from tests.recipes.llm_sft import families, tiny_runs

SFT = Objective("sft", {})
IDS = torch.arange(40).view(2, 20)


def plan(base: Path, template: str | None = None) -> ExportPlan:
    return plan_chat_export(base, template, TRANSFORMERS, SFT)


def trained_tensors(run: Path) -> dict[str, Tensor]:
    with rank_shards.open_shards(checkpoint.find(run)) as (read, shapes):
        return {name: read(name, None) for name in shapes if not name.startswith("optimizer.")}


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.eval()(input_ids=IDS).logits
    return found


def test_stock_classes_load_the_trained_weights_bit_by_bit(full_run: Path, exported: Path) -> None:
    trained = AutoModelForCausalLM.from_pretrained(full_run.parent / "base")
    before = logits(trained)
    trained.load_state_dict(trained_tensors(full_run), strict=False)
    found = AutoModelForCausalLM.from_pretrained(exported)
    assert found.dtype == torch.float32
    assert torch.equal(logits(found), logits(trained)) and not torch.equal(logits(found), before)
    assert AutoTokenizer.from_pretrained(exported).get_vocab() == families.tokenizer("chatml").get_vocab()


def test_a_stored_copy_of_a_tied_head_is_not_exported(full_run: Path, exported: Path) -> None:
    stored = load_file(full_run.parent / "base" / "model.safetensors")
    assert stored.keys() - load_file(exported / "model.safetensors").keys() == {"lm_head.weight"}


def test_merged_adapters_give_the_logits_of_peft(tmp_path: Path) -> None:
    run = tiny_runs.trained(tmp_path, *tiny_runs.ADAPTED, ("train.steps", "8"))
    state, trained = checkpoint.read_state(checkpoint.find(run)), trained_tensors(run)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = logits(whole)
    lora = export.Lora.model_validate(state["lora"])
    lora_adapters.inject_adapters(whole, lora, r".*(?:_proj)")
    unknown = set(trained) - set(dict(whole.named_parameters()))
    whole.load_state_dict(trained, strict=False, assign=True)
    found = logits(AutoModelForCausalLM.from_pretrained(export.export(run, tmp_path / "out")))
    assert not unknown and len(trained) == 2 * 2 * 7
    assert torch.allclose(found, logits(whole), rtol=1e-5, atol=1e-5) and (found - before).abs().max() > 0.1
    assert "LoRA of rank 8, alpha 16, merged" in (tmp_path / "out" / "README.md").read_text()


def test_the_template_of_the_base_is_copied(exported: Path, full_run: Path) -> None:
    base = full_run.parent / "base"
    assert (exported / "chat_template.jinja").read_bytes() == (base / "chat_template.jinja").read_bytes()
    assert AutoTokenizer.from_pretrained(exported).chat_template == families.template("chatml")


@pytest.mark.parametrize("kept_in", ["file", "field", "both", "nowhere"])
def test_the_template_of_the_training_replaces_all_others(tmp_path: Path, kept_in: str) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    old = (base / "chat_template.jinja").read_text()
    if kept_in in ("field", "nowhere"):
        (base / "chat_template.jinja").unlink()
    if kept_in in ("field", "both"):
        settings = json.loads((base / "tokenizer_config.json").read_text())
        (base / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": old}))
    new = families.template("generation")
    (tmp_path / "new.jinja").write_text(new)
    out = export.export(
        tiny_runs.trained(tmp_path, ("options.chat_template", str(tmp_path / "new.jinja")), ("train.steps", "1")), tmp_path / "out"
    )
    assert AutoTokenizer.from_pretrained(out).chat_template == new != old
    assert (out / "chat_template.jinja").read_text() == new
    assert json.loads((out / "tokenizer_config.json").read_text()).get("chat_template", new) == new


def test_the_requested_dtype_is_exported(full_run: Path, tmp_path: Path) -> None:
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        out = export.export(full_run, tmp_path / name, dtype=name)
        assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == dtype
        assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {dtype}


def test_only_files_with_known_names_are_copied(tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    for name in ("chats.json", "notes.txt", "modeling_mine.py", "LICENSE", "model.safetensors.index.json", "tokenizer.model"):
        (base / name).write_text('{"weight_map": {}}')
    (base / "additional_chat_templates").mkdir()
    copied = set(plan(base).copy)
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.model", "LICENSE"} <= copied
    assert "additional_chat_templates" in copied
    assert copied.isdisjoint({"chats.json", "notes.txt", "modeling_mine.py", "model.safetensors.index.json", "model.safetensors"})
    assert not any("chat_template" in name for name in plan(base, "{{ messages }}").copy)


def test_the_end_of_turn_is_added_to_the_generation_config(tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    end = families.tokenizer("chatml").eos_token_id
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 5, "temperature": 0.6, "do_sample": True}))
    found = json.loads(plan(base).files["generation_config.json"])
    assert found == {"eos_token_id": [5, end], "temperature": 0.6, "do_sample": True}
    for enough in (end, [end], [end, 7]):
        (base / "generation_config.json").write_text(json.dumps({"eos_token_id": enough}))
        found = plan(base)
        assert "generation_config.json" not in found.files and "generation_config.json" in found.copy


def test_auto_classes_load_an_adapter_with_the_template_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The case of huggingface/peft#1744; without arguments, from another folder than that of the training."""
    from peft import AutoPeftModelForCausalLM

    template = families.tokenizer("chatml").chat_template + "{# of this run #}"
    (tmp_path / "own.jinja").write_text(template)
    run = tiny_runs.trained(tmp_path, *tiny_runs.ADAPTED, ("train.steps", "4"), ("options.chat_template", str(tmp_path / "own.jinja")))
    adapter = export.export(run, tmp_path / "adapter", adapter_only=True)
    said = capsys.readouterr().err
    assert "tokenizer and chat template of the run" in said and "chat_template.jinja" in said
    assert json.loads((adapter / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
    assert AutoTokenizer.from_pretrained(adapter).chat_template == template
    merged = AutoModelForCausalLM.from_pretrained(export.export(run, tmp_path / "merged"))
    found, expected = logits(AutoPeftModelForCausalLM.from_pretrained(adapter)), logits(merged)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    assert not torch.allclose(found, logits(AutoModelForCausalLM.from_pretrained(tmp_path / "base")), atol=1e-3)


def test_a_relative_base_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.write_base(tmp_path / "bases" / "one")
    monkeypatch.chdir(tmp_path)
    run = tiny_runs.trained(tmp_path, *tiny_runs.ADAPTED, ("train.steps", "1"), ("model.source", "bases/one")).resolve()
    assert checkpoint.read_state(checkpoint.find(run))["base"]["source"] == str(tmp_path / "bases" / "one")
    monkeypatch.chdir("/")
    export.export(run, tmp_path / "out")
    adapter = export.export(run, tmp_path / "adapter", adapter_only=True)
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(tmp_path / "bases" / "one")
    (tmp_path / "bases" / "one").rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"the base model of this checkpoint, .*/one: no such folder.*; if it was moved, .* --base FOLDER"):
        export.export(run, tmp_path / "again")
    export.export(run, tmp_path / "again", moved_base=tmp_path / "moved")
