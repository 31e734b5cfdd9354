"""Which folders are refused as quantized, and what the message names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.base_quantization import StoredForm, check_plain, drop_declarations, find_form, find_raw_tensor

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 64], "activation_scheme": "static"}


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq (bits 4)"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq (bits 4, group_size 128)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "bitsandbytes (load_in_4bit True)"),
        ({"load_in_8bit": True}, "bitsandbytes (load_in_8bit True)"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors (format pack-quantized)"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors (format float-quantized)"),
        ({"config_groups": {}, "format": "dense"}, "compressed-tensors (format dense)"),
        ({"quant_method": "torchao", "quant_type": {"default": {}}}, "torchao"),
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": "quanto", "weights": "int8"}, "quanto (weights int8)"),
        ({"quant_method": "eetq", "weights": "int8"}, "eetq"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "vptq"}, "vptq"),
        ({"quant_method": "spqr", "bits": 3}, "spqr (bits 3)"),
        ({"quant_method": "higgs", "bits": 4}, "higgs (bits 4)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt (quant_algo NVFP4)"),
        ({"quant_method": "bitnet"}, "bitnet"),
        ({"quant_method": "a method of 2027"}, "a method of 2027"),
        ({"group_size": 64, "bits": 4}, "MLX (bits 4, group_size 64)"),
        ({"something": 1}, "an unnamed method"),
        ("int4", "'int4'"),
    ],
)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config.quantization_config", "quantization"])
def test_a_declared_method_is_refused_by_name(declared: Any, named: str, place: str, tmp_path: Path) -> None:
    outer, _, inner = place.rpartition(".")
    config = {outer: {inner: declared, "hidden_size": 8}} if outer else {inner: declared}
    with pytest.raises(UserError) as refusal:
        find_form(config, tmp_path)
    assert f"config.json: {place}: the weights are quantized with {named}" in str(refusal.value)
    assert "--model.quantization nf4" in str(refusal.value)


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json"])
def test_a_file_of_a_quantizing_tool_is_enough(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=f"{name} says that the weights are quantized"):
        find_form({"model_type": "llama"}, tmp_path)


def test_what_can_be_dequantized_is_recognized_at_any_depth(tmp_path: Path) -> None:
    assert find_form({"quantization_config": FP8}, tmp_path) == StoredForm("fp8", (128, 64))
    assert find_form({"text_config": {"quantization_config": FP8}}, tmp_path) == StoredForm("fp8", (128, 64))
    assert find_form({"quantization_config": {"quant_method": "fp8"}}, tmp_path) == StoredForm("fp8")
    assert find_form({"quantization_config": {"quant_method": "mxfp4"}}, tmp_path) == StoredForm("mxfp4")
    assert str(StoredForm("fp8", (128, 64))) == "fp8 (blocks of 128 × 64)"
    for nothing in ({}, {"quantization_config": None}, {"quantization_config": {}}, {"quantization": False}):
        assert find_form(nothing, tmp_path) is None


def compressed(*weights: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group for each of `weights`, as llm-compressor writes it for fp8."""
    usual = {"type": "float", "num_bits": 8, "symmetric": True, "strategy": "channel", "group_size": None, "block_structure": None}
    groups = {f"group_{number}": {"targets": ["Linear"], "weights": usual | each} for number, each in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups, "ignore": ["lm_head"], **keys}


@pytest.mark.parametrize(
    ("declared", "block"),
    [
        (compressed({}), None),
        (compressed({"strategy": "tensor"}, {}, format="naive-quantized"), None),
        (compressed({"strategy": "block", "block_structure": [128, 64]}), (128, 64)),
        (compressed({"strategy": "group", "group_size": 32}, sparsity_config={"format": "dense"}, transform_config={}), (1, 32)),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": []}, None),
    ],
)
def test_fp8_of_other_libraries_is_recognized(declared: dict[str, Any], block: tuple[int, int] | None, tmp_path: Path) -> None:
    assert find_form({"quantization_config": declared}, tmp_path) == StoredForm("fp8", block)


@pytest.mark.parametrize(
    "declared",
    [
        compressed(),
        compressed({"num_bits": 4}),
        compressed({"type": "int"}, format="naive-quantized"),
        compressed({}, format="mixed-precision"),
        compressed({"symmetric": False}),
        compressed({"strategy": "tensor_group", "group_size": 16}),
        compressed({"strategy": "group", "group_size": None}),
        compressed({}, {"strategy": "block", "block_structure": [128, 128]}),
        compressed({}, sparsity_config={"format": "sparse-24-bitmask"}),
        compressed({}, transform_config={"config_groups": {"R1": {}}}),
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": 8}}},
    ],
)
def test_other_formats_of_compressed_tensors_are_refused(declared: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the weights are quantized with compressed-tensors \(format "):
        find_form({"quantization_config": declared}, tmp_path)


@pytest.mark.parametrize("block", [[128], [0, 128], ["128", 128], 128, [128.0, 128], [True, 128]])
def test_an_invalid_block_is_refused(block: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weight_block_size: .* expected two positive integers"):
        find_form({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}}, tmp_path)


def test_two_declarations_must_agree(tmp_path: Path) -> None:
    both = {"quantization_config": FP8, "text_config": {"quantization_config": FP8}}
    assert find_form(both, tmp_path) == StoredForm("fp8", (128, 64))
    both["text_config"]["quantization_config"] = {"quant_method": "mxfp4"}
    with pytest.raises(UserError, match=r"quantization_config and text_config.quantization_config declare different"):
        find_form(both, tmp_path)


def test_declarations_are_dropped_at_any_depth() -> None:
    config = {
        "dtype": "float8_e4m3fn",
        "quantization_config": FP8,
        "parts": [{"compression_config": {}, "a": 1}],
        "text": {"quantization": {}},
    }
    assert drop_declarations(config) == {"dtype": "bfloat16", "parts": [{"a": 1}], "text": {}}


@pytest.mark.parametrize(
    ("types", "named"),
    [
        ({"a.weight": "F8_E4M3"}, "a.weight is stored as F8_E4M3"),
        ({"a.weight": "I8"}, "a.weight is stored as I8"),
        ({"a.weight": "U8", "a.weight.absmax": "U8"}, "a.weight"),
        ({"a.weight": "I8", "a.SCB": "F32"}, "a.SCB"),
        ({"a.qweight": "I32", "a.qzeros": "I32", "a.scales": "F16", "a.g_idx": "I32"}, "a.g_idx"),
        ({"a.weight": "F16", "a.scales": "F16"}, "a.scales"),
        ({"a.weight": "U32", "a.scales": "F16", "a.biases": "F16"}, "a.biases"),
        ({"a.weight": "BF16", "a.weight_scale": "F32"}, "a.weight_scale"),
        ({"a.weight_scale_inv": "F32"}, "a.weight_scale_inv"),
        ({"a.weight_packed": "I32"}, "a.weight_packed"),
        ({"e.down_proj_blocks": "U8", "e.down_proj_scales": "U8"}, "e.down_proj_blocks"),
        ({"e.down_proj": "BF16", "e.down_proj_scale_inv": "F32"}, "e.down_proj_scale_inv"),
        ({"e.down_proj": "U8"}, "e.down_proj is stored as U8"),
    ],
)
def test_values_that_are_no_weights_are_found(types: dict[str, str], named: str) -> None:
    assert str(find_raw_tensor(types)).startswith(named)


def test_tensors_of_ordinary_models_are_none_of_them() -> None:
    """Masks and positions as integers, a learned temperature, scales of layers."""
    names = {"h.0.attn.bias": "U8", "embeddings.position_ids": "I64", "bn.num_batches_tracked": "I64", "logit_scale": "F32"}
    names |= {"layer_scale1": "F32", "a.weight": "BF16", "a.bias": "BF16", "attn.scales": "F32", "layer.0.layer_scale_parameter": "F16"}
    assert find_raw_tensor(names) is None


def test_a_library_gets_plain_weights_only(tmp_path: Path) -> None:
    check_plain(tmp_path, {"model_type": "whisper"}, {"a.weight": "F32"}, "--model")
    with pytest.raises(UserError, match=r"--model .*: its weights are stored in mxfp4"):
        check_plain(tmp_path, {"quantization_config": {"quant_method": "mxfp4"}}, {}, "--model")
    with pytest.raises(UserError, match=r"--model .*: a.weight is stored as I8"):
        check_plain(tmp_path, {}, {"a.weight": "I8"}, "--model")
