"""Tensor-parallel plans are complete and followed, and models that they do not fit are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from overtone.finetune.config import Config, Lora
from overtone.finetune.distributed import sharding, tensor_parallel
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading, lora_adapters
from overtone.recipes.language.modeling.tensor_parallel_plans import LLAMA, PLANS
from tests.causal_lm.recipe import ByteCausalModel, on_meta, write_base
from tests.finetune import tiny

Kind = Literal["llama", "qwen3"]
KINDS: tuple[Kind, ...] = ("llama", "qwen3")
CUTS = {"colwise": "outputs", "rowwise": "inputs"}


def model_of(folder: Path, kind: Kind) -> tuple[ByteCausalModel, tuple[type[nn.Module], ...]]:
    if not (folder / kind).is_dir():
        write_base(folder / kind, kind)
    model = on_meta(folder / kind)
    return model, (type(model.model.layers[0]),)


def halves(tmp_path: Path, *overrides: tuple[str, str]) -> Config:
    return tiny.config_in(tmp_path, ("parallel.tensor", "2"), ("parallel.strategy", "fsdp"), *overrides)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_that_of_transformers_and_more(tmp_path: Path, kind: Kind) -> None:
    """Canary: theirs leaves the norms of heads out, which here would train copies that drift apart."""
    model, _ = model_of(tmp_path, kind)
    theirs = {path.removeprefix("layers.*."): CUTS[how] for path, how in model.model.config.base_model_tp_plan.items()}
    plan = tensor_parallel.plan_of(model.model.layers[0], PLANS)
    assert {path: cut for path, cut in plan.items() if cut != "heads"} == theirs
    assert len(plan) == {"llama": 7, "qwen3": 9}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_leaves_only_whole_norms_out(tmp_path: Path, kind: Kind) -> None:
    model, blocks = model_of(tmp_path, kind)
    (block, _) = tensor_parallel.blocks_of(model, blocks)
    planned = {f"{path}.weight" for path in tensor_parallel.plan_of(block, PLANS)}
    assert {name for name, _ in block.named_parameters()} - planned == {"input_layernorm.weight", "post_attention_layernorm.weight"}
    chosen = halves(tmp_path)
    tensor_parallel.check_model(model, blocks, chosen.parallel.tensor, chosen.model, PLANS)


def test_without_tensor_parallelism_any_block_is_accepted(tmp_path: Path) -> None:
    chosen = tiny.config_in(tmp_path)
    tensor_parallel.check_model(nn.Sequential(nn.Linear(2, 3)), (nn.Linear,), chosen.parallel.tensor, chosen.model)


def test_a_block_without_a_plan_is_refused(tmp_path: Path) -> None:
    missing = "parallel.tensor: 2: the recipe has no tensor-parallel plan for Linear"
    for plans, only in ((PLANS, ", only for LlamaDecoderLayer, Qwen3DecoderLayer"), (tensor_parallel.NO_PLANS, "")):
        with pytest.raises(UserError) as caught:
            chosen = halves(tmp_path)
            tensor_parallel.check_model(nn.Sequential(nn.Linear(2, 2)), (nn.Linear,), chosen.parallel.tensor, chosen.model, plans)
        assert str(caught.value) == f"{missing}{only}; drop parallel.tensor"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_attention_heads": 3}, "parallel.tensor: 2 does not divide the model's num_attention_heads: 3"),
        ({"num_key_value_heads": 1}, "parallel.tensor: 2 does not divide the model's num_key_value_heads: 1"),
        ({"intermediate_size": 91}, "parallel.tensor: 2 does not divide the model's intermediate_size: 91"),
        (
            {"attention_dropout": 0.1},
            "parallel.tensor: 2: attention_dropout: 0.1: dropout masks would differ between tensor-parallel ranks",
        ),
    ],
)
def test_a_model_that_does_not_divide_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    model, blocks = model_of(tmp_path, "qwen3")
    model.model.config.update(changed)
    with pytest.raises(UserError) as caught:
        chosen = halves(tmp_path)
        tensor_parallel.check_model(model, blocks, chosen.parallel.tensor, chosen.model, PLANS)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dropout: 0.1", "model.lora.dropout: 0.1: dropout masks would differ"),
        ("dora: true", "model.lora.dora needs the norms of whole rows"),
    ],
)
def test_adapters_that_tensor_parallelism_would_change_are_refused(tmp_path: Path, key: str, message: str) -> None:
    model, blocks = model_of(tmp_path, "llama")
    with pytest.raises(UserError) as caught:
        chosen = halves(tmp_path, ("model.lora", f"{{rank: 2, {key}}}"))
        tensor_parallel.check_model(model, blocks, chosen.parallel.tensor, chosen.model, PLANS)
    assert message in str(caught.value)
    chosen = halves(tmp_path, ("model.lora", "{rank: 2}"))
    tensor_parallel.check_model(model, blocks, chosen.parallel.tensor, chosen.model, PLANS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_is_placed_as_planned(tmp_path: Path, world: World, kind: Kind) -> None:
    model, blocks = model_of(tmp_path, kind)
    lora_adapters.inject_adapters(model, Lora(rank=2), r"model\.layers\.0\.(self_attn\.q_proj|mlp\.down_proj)")
    loading.freeze(model, lora_adapters.is_adapter, torch.float32)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shard", "tensor"))
    tensor_parallel.parallelize_blocks(model, blocks, mesh["tensor"], PLANS)
    for block in tensor_parallel.blocks_of(model, blocks):
        fully_shard(block, mesh=mesh["shard"])
    assert not [name for name, parameter in model.named_parameters() if parameter.requires_grad and not lora_adapters.is_adapter(name)]
    names = {id(parameter): name.removeprefix("model.layers.0.") for name, parameter in model.named_parameters()}
    found = {names[id(p)]: p.placements[-1] for p in tensor_parallel.check_placements(model, blocks, PLANS) if isinstance(p, DTensor)}
    expected = {
        "self_attn.q_proj.base_layer.weight": Shard(0),
        "self_attn.q_proj.lora_B.default.weight": Shard(0),
        "mlp.down_proj.base_layer.weight": Shard(1),
        "mlp.down_proj.lora_A.default.weight": Shard(1),
        "mlp.up_proj.weight": Shard(0),
        "self_attn.o_proj.weight": Shard(1),
        **({"self_attn.k_norm.weight": Replicate()} if kind == "qwen3" else {}),
    }
    assert {name: found[name] for name in expected} == expected
    assert "self_attn.q_proj.lora_A.default.weight" not in found and "input_layernorm.weight" not in found


def test_a_module_missing_from_the_plan_is_noticed(tmp_path: Path, world: World) -> None:
    model, blocks = model_of(tmp_path, "qwen3")
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shard", "tensor"))
    incomplete = {tensor_parallel.class_path(model.model.layers[0]): LLAMA}
    tensor_parallel.parallelize_blocks(model, blocks, mesh["tensor"], incomplete)
    sharding.fully_shard(model, mesh=mesh["shard"])
    assert list(tensor_parallel.check_placements(model, blocks, incomplete))
    with pytest.raises(
        RuntimeError, match=r"Qwen3DecoderLayer: self_attn\.q_norm\.weight is placed as None in its group of ranks, not as R"
    ):
        list(tensor_parallel.check_placements(model, blocks, PLANS))


def test_adapters_are_cut_as_their_layers_are() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(2, 2)

    block = nn.ModuleDict({"first": Adapted(), "last": Adapted(), "plain": nn.Linear(2, 2)})
    plan: dict[str, tensor_parallel.Cut] = {"first": "outputs", "last": "inputs", "plain": "inputs"}
    assert list(tensor_parallel.parallel_styles(block, plan)) == [
        "first.base_layer",
        "first.lora_B.default",
        "last.base_layer",
        "last.lora_A.default",
        "plain",
    ]
