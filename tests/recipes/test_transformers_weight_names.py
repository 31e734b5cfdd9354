"""Tests of `overtone.recipes.transformers_weight_names`: of which tensors in files parameters and buffers consist."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification

from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading
from overtone.finetune.storage.tensor_layouts import TensorLayout, invert_layouts
from overtone.recipes import transformers_meta_models
from overtone.recipes.image_classification.model import tiny_checkpoint
from overtone.recipes.transformers_release import is_old
from overtone.recipes.transformers_weight_names import convert_layouts, find_file_names, find_layouts, find_prefix, read_buffers
from tests.recipes.language import tiny_models
from tests.recipes.test_transformers_meta_models import KIND, build_resnet

needs_5 = pytest.mark.skipif(is_old(version("transformers")), reason="transformers 4 computes with the tensors in the files")


def build_classifier(base: Path) -> Any:
    config = transformers_meta_models.read_config(base, KIND)
    return transformers_meta_models.build_on_meta(lambda: AutoModelForImageClassification.from_config(config), base)


def test_a_backbone_alone_is_found_without_its_prefix(tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    whole, stored = build_classifier(base), load_file(base / "model.safetensors")
    layouts = find_layouts(whole, base)
    assert set().union(*(layout.parts() for layout in layouts.values())) == stored.keys()
    assert layouts.keys() == {name for name in whole.state_dict() if name.startswith("vit.")}
    assert find_prefix(whole, stored) == "vit." and find_prefix(whole, [f"vit.{name}" for name in stored]) == ""
    assert find_file_names(whole, ["classifier.bias"]) == {"classifier.bias": "classifier.bias"}
    assert find_layouts(whole, tmp_path) == {}, "a base without weights"


def test_saved_buffers_have_the_values_of_the_base(tmp_path: Path) -> None:
    model = build_resnet()
    buffers = {name: value + 1 for name, value in model.named_buffers() if name.endswith("running_mean")}
    assert len(buffers) > 3 and read_buffers(model, {}, tmp_path) == {}, "a base without weights"
    save_file(buffers, tmp_path / "model.safetensors")
    found = read_buffers(model, find_layouts(model, tmp_path), tmp_path)
    assert found.keys() == buffers.keys() and all(torch.equal(found[name], value) for name, value in buffers.items())


EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONVERTED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**EXPERTS, "head_dim": 8},
    "mixtral": {"num_local_experts": 3},
    "deepseek_v3": {
        "n_routed_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 8,
        "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
        "num_key_value_heads": 4,
    },
    "gpt_neox": {},
    "granitemoe": {"num_local_experts": 3},
    "hrm_text": {"head_dim": 8},
}  # fmt: skip
"""Types that transformers 5 stores in another form → what their tiny configs have besides `tiny_models.SHAPE`."""


def write_stock(folder: Path, kind: str) -> Any:
    """A tiny model with random values, saved by transformers as it is released; without its values."""
    shape = {key: value for key, value in tiny_models.SHAPE.items() if kind not in ("hrm_text",) or key != "initializer_range"}
    config = AutoConfig.for_model(kind, **{**shape, "vocab_size": 40, **CONVERTED[kind]})
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for value in model.state_dict().values():
            value.normal_()
    model.save_pretrained(folder)
    return transformers_meta_models.build_on_meta(lambda: AutoModelForCausalLM.from_config(config), folder)


@needs_5
@pytest.mark.parametrize("kind", CONVERTED)
def test_values_are_those_of_stock_transformers_to_the_bit(kind: str, tmp_path: Path) -> None:
    whole = write_stock(tmp_path, kind)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    layouts, stored = find_layouts(whole, tmp_path), load_file(tmp_path / "model.safetensors")
    assert layouts and set(layouts) <= set(stock)
    with loading.open_base(tmp_path, layouts) as read:
        for name in dict(whole.named_parameters()):
            assert torch.equal(read(name, None), stock[name]), name
            inner = tuple(slice(size // 3, size) for size in stock[name].shape)
            assert torch.equal(read(name, inner), stock[name][inner]), f"{name}, a slice of it"
    assert loading.find_misfits(whole, tmp_path, layouts=layouts) == []
    buffers = read_buffers(whole, layouts, tmp_path)
    assert len(buffers) == (kind == "deepseek_v3") and all(torch.equal(value, stock[name]) for name, value in buffers.items())
    for name, pieces in invert_layouts(layouts).items():
        whole_again = TensorLayout(stored[name].shape, pieces).read(None, lambda own, cut: stock[own] if cut is None else stock[own][cut])
        assert torch.equal(whole_again, stored[name]), f"{name} in an export"


@needs_5
def test_missing_experts_are_named(tmp_path: Path) -> None:
    whole = write_stock(tmp_path, "qwen3_moe")
    stored = load_file(tmp_path / "model.safetensors")
    lost = "model.layers.1.mlp.experts.2"
    save_file({name: value for name, value in stored.items() if name != f"{lost}.up_proj.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.experts\.gate_up_proj cannot be composed of .*up_proj.*download"):
        find_layouts(whole, tmp_path)
    save_file({name: value for name, value in stored.items() if not name.startswith(lost)}, tmp_path / "model.safetensors")
    problems = loading.find_misfits(whole, tmp_path, layouts=find_layouts(whole, tmp_path))
    assert problems == [
        "model.layers.1.mlp.experts.gate_up_proj is (2, 48, 32) there, the model has (3, 48, 32)",
        "model.layers.1.mlp.experts.down_proj is (2, 32, 24) there, the model has (3, 32, 24)",
    ]


@needs_5
def test_a_conversion_that_does_more_than_moving_values_is_refused_by_name(tmp_path: Path) -> None:
    from transformers.core_model_loading import Interleave, WeightConverter

    whole = write_stock(tmp_path, "gpt_neox")
    own: dict[str, Tensor] = whole.state_dict()
    stored = {"pairs.weight": TensorLayout.of("pairs.weight", (4, 2))}
    converter = WeightConverter(r"pairs\.weight", "lm_head.weight", operations=[Interleave(dim=0)])
    with pytest.raises(UserError, match=r"computes lm_head\.weight from pairs\.weight by Interleave, which is not supported"):
        convert_layouts(stored, [converter], own, whole, tmp_path)
