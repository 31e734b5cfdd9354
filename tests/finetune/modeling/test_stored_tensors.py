"""Quantized bases: every value as the format defines it, for any slice, and each file that does not fit is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading
from overtone.finetune.modeling.stored_tensors import StoredTensor, find_tensors, read_values


def write_folder(folder: Path, tensors: dict[str, Tensor], quantization: Any, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    declared = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config, **declared}))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    """The scale of each value, by its definition, one by one."""
    return torch.stack(
        [torch.stack([scales[..., row // block[0], column // block[1]] for column in range(shape[-1])], -1) for row in range(shape[-2])], -2
    )


def quantized(shape: tuple[int, ...], grid: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """8-bit values [..., n, k] and a scale for each block of `grid`."""
    chance = torch.Generator().manual_seed(seed)
    values = (torch.randn(shape, generator=chance) * 50).to(torch.float8_e4m3fn)
    *front, rows, columns = shape
    scales = torch.rand([*front, math.ceil(rows / grid[0]), math.ceil(columns / grid[1])], generator=chance) + 0.01
    return values, scales


@pytest.mark.parametrize("shape", [(128, 128), (192, 300), (5, 7), (130, 129), (3, 40, 50), (257, 1)])
@pytest.mark.parametrize("block", [(128, 128), (16, 24)])
@pytest.mark.parametrize("ending", ["_scale_inv", "_scale"])
def test_fp8_is_multiplied_with_the_scale_of_its_block(shape: tuple[int, ...], block: tuple[int, int], ending: str, tmp_path: Path) -> None:
    """Also where the last block is smaller: a size computed as rows / blocks of rows, as transformers does, would be 96 for 192 rows."""
    values, scales = quantized(shape, block)
    plain = torch.randn(4, 4, dtype=torch.bfloat16)
    named = {"a.weight": values, f"a.weight{ending}": scales, "b.weight": plain, "a.input_scale": torch.ones(())}
    base = write_folder(tmp_path, named, {"quant_method": "fp8", "weight_block_size": [*block]})
    expected = values.float() * spread(scales, block, shape)
    with loading.open_base(base) as read:
        assert torch.equal(read("a.weight", None), expected)
        assert torch.equal(read("b.weight", None), plain)
        for start, stop in ((0, shape[-2]), (1, 3), (shape[-2] - 1, shape[-2]), (2, 2)):
            cut = (*[slice(0, size) for size in shape[:-2]], slice(start, stop), slice(0, shape[-1]))
            assert torch.equal(read("a.weight", cut), expected[cut])
        cut = (*[slice(0, size) for size in shape[:-2]], slice(1, 4), slice(shape[-1] // 2, shape[-1]))
        assert torch.equal(read("a.weight", cut), expected[cut])
    assert loading.tensor_shapes(base) == {"a.weight": shape, "b.weight": (4, 4)}


@pytest.mark.parametrize(
    "scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]]), torch.full((5, 1), 0.5), torch.full((5,), 0.5)]
)
def test_one_scale_can_be_for_a_tensor_or_for_each_row(scale: Tensor, tmp_path: Path) -> None:
    scale = scale * torch.arange(1, scale.numel() + 1).reshape(scale.shape)
    values, _ = quantized((5, 7), (5, 7))
    base = write_folder(tmp_path, {"a.weight": values, "a.weight_scale": scale}, {"quant_method": "fp8"})
    with loading.open_base(base) as read:
        rows = scale.reshape(-1, 1) if scale.numel() > 1 else scale.reshape(1, 1)
        assert torch.equal(read("a.weight", None), values.float() * rows)
        assert torch.equal(read("a.weight", (slice(2, 4), slice(3, 7))), (values.float() * rows)[2:4, 3:7])


CHANNELS = {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}, "targets": ["Linear"]}
GROUPS = {"weights": {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 4}, "targets": ["Linear"]}


@pytest.mark.parametrize(
    ("declared", "shape", "of_scale"),
    [
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": CHANNELS}}, (6, 8), (6, 1)),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": GROUPS}}, (6, 8), (6, 2)),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, (6, 8), (6, 1)),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, (3, 6, 8), (3, 1, 8)),
    ],
)
def test_fp8_of_other_libraries_is_multiplied_with_its_scales(
    declared: dict[str, object], shape: tuple[int, ...], of_scale: tuple[int, ...], tmp_path: Path
) -> None:
    """bf16 scales, as llm-compressor stores them; dequantized to bf16 the values are its own, (q.to(bf16) * scale), to the bit."""
    values, _ = quantized(shape, shape[-2:])
    scale = (torch.rand(of_scale, generator=torch.Generator().manual_seed(1)) + 0.01).bfloat16()
    named = {"a.weight": values, "a.weight_scale": scale, "a.input_scale": torch.ones(1), "b.k_scale": torch.ones(1)}
    base = write_folder(tmp_path, named, declared)
    repeats = [size // own for size, own in zip(shape, of_scale, strict=True)]
    wide = scale
    for dim, times in enumerate(repeats):
        wide = wide.repeat_interleave(times, dim)
    with loading.open_base(base) as read:
        found = read("a.weight", None)
        assert torch.equal(found, values.float() * wide.float())
        assert torch.equal(found.bfloat16(), values.bfloat16() * wide)
        cut = (*[slice(0, size) for size in shape[:-2]], slice(1, 4), slice(3, 7))
        assert torch.equal(read("a.weight", cut), found[cut])
    assert loading.tensor_shapes(base) == {"a.weight": shape}


def test_scales_can_be_powers_of_two_in_one_byte(tmp_path: Path) -> None:
    values, _ = quantized((4, 4), (2, 2))
    exponents = torch.tensor([[127, 128], [120, 130]], dtype=torch.uint8)
    expected = values.float() * spread(torch.exp2(exponents.float() - 127), (2, 2), (4, 4))
    declared = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    for number, scales in enumerate((exponents, exponents.view(torch.float8_e8m0fnu))):
        base = write_folder(tmp_path / str(number), {"a.weight": values, "a.weight_scale_inv": scales}, declared)
        with loading.open_base(base) as read:
            assert torch.equal(read("a.weight", None), expected)


def test_fp8_equals_the_dequantization_of_transformers_5(tmp_path: Path) -> None:
    """Where that is defined: blocks that divide the shape."""
    integration = pytest.importorskip("transformers.integrations.finegrained_fp8")
    if not hasattr(integration, "Fp8Dequantize"):
        pytest.skip("transformers 4 cannot dequantize fp8")
    values, scales = quantized((256, 384), (128, 128))
    base = write_folder(
        tmp_path, {"a.weight": values, "a.weight_scale_inv": scales}, {"quant_method": "fp8", "weight_block_size": [128, 128]}
    )
    with loading.open_base(base) as read:
        assert torch.equal(read("a.weight", None), integration.Fp8Dequantize(None)._dequantize_one(values, scales, torch.float32))


def packed(experts: int, out: int, groups: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (experts, out, groups, 16), dtype=torch.uint8, generator=chance)
    return blocks, torch.randint(100, 140, (experts, out, groups), dtype=torch.uint8, generator=chance)


def test_mxfp4_equals_the_dequantization_of_transformers(tmp_path: Path) -> None:
    blocks, scales = packed(3, 10, 4)
    named = {"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales, "e.gate_up_proj_bias": torch.ones(3, 10)}
    base = write_folder(tmp_path, named, {"quant_method": "mxfp4"}, torch_dtype="bfloat16")
    expected = convert_moe_packed_tensors(blocks, scales)
    assert expected.shape == (3, 128, 10)
    with loading.open_base(base) as read:
        assert torch.equal(read("e.gate_up_proj", None), expected)
        for cut in (
            (slice(1, 2), slice(0, 128), slice(0, 10)),
            (slice(0, 3), slice(5, 70), slice(3, 9)),
            (slice(2, 3), slice(33, 34), slice(9, 10)),
        ):
            assert torch.equal(read("e.gate_up_proj", cut), expected[cut])
        assert read("e.gate_up_proj", (slice(3, 3), slice(0, 128), slice(0, 10))).shape == (0, 128, 10)
    assert loading.tensor_shapes(base) == {"e.gate_up_proj": (3, 128, 10), "e.gate_up_proj_bias": (3, 10)}


def test_mxfp4_by_hand(tmp_path: Path) -> None:
    """Lower half first; sign, then two bits of exponent, then one of mantissa; 2 to the scale minus 127."""
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, 0], blocks[0, 0, 0, 1] = 0x72, 0xF9
    base = write_folder(
        tmp_path, {"w_blocks": blocks, "w_scales": torch.full((1, 1, 1), 129, dtype=torch.uint8)}, {"quant_method": "mxfp4"}
    )
    with loading.open_base(base) as read:
        assert read("w", None).flatten()[:4].tolist() == [4.0, 24.0, -2.0, -24.0]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}, "a.weight is stored in fp8, with 0 scales"),
        (
            {"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(1), "a.weight_scale_inv": torch.ones(1)},
            "with 2 scales",
        ),
        (
            {"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(3, 3)},
            r"\[3, 3\], which does not fit a.weight",
        ),
        ({"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(2, 2).int()}, "does not fit"),
        ({"a.weight": torch.ones(4, 4), "a.weight_scale_inv": torch.ones(2, 2)}, "a.weight_scale_inv is a part of a quantized weight"),
        ({"a.weight": torch.ones(4, 2).to(torch.int8), "a.weight_scale_inv": torch.ones(2, 2)}, "a.weight is stored as I8"),
    ],
)
def test_fp8_that_does_not_fit_its_scales_is_refused(tensors: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    base = write_folder(tmp_path, tensors, {"quant_method": "fp8", "weight_block_size": [2, 2]})
    with pytest.raises(UserError, match=message):
        loading.find_tensors(base)


def test_mxfp4_in_another_layout_is_refused(tmp_path: Path) -> None:
    blocks, scales = packed(2, 3, 2)
    for number, (values, exponents) in enumerate(((blocks.flatten(-2), scales), (blocks, scales.flatten(1)), (blocks.float(), scales))):
        base = write_folder(tmp_path / str(number), {"w_blocks": values, "w_scales": exponents}, {"quant_method": "mxfp4"})
        with pytest.raises(UserError, match="not mxfp4 in the layout of gpt-oss"):
            loading.find_tensors(base)
    base = write_folder(tmp_path / "twice", {"w_blocks": blocks, "w_scales": scales, "w": torch.ones(2)}, {"quant_method": "mxfp4"})
    with pytest.raises(UserError, match=r"w is there twice|w_scales"):
        loading.find_tensors(base)


def test_stored_values_without_a_declaration_are_refused(tmp_path: Path) -> None:
    values, scales = quantized((4, 4), (2, 2))
    for number, tensors in enumerate(
        ({"a.weight": values}, {"a.weight": values, "a.weight_scale_inv": scales}, {"a.qweight": scales.int()})
    ):
        base = write_folder(tmp_path / str(number), tensors, None)
        with pytest.raises(UserError, match=r"no scale that|no form that") as refusal:
            loading.find_tensors(base)
        assert "a." in str(refusal.value) and "plain weights" in str(refusal.value)


def test_plain_weights_stay_as_they_are_under_a_left_over_declaration(tmp_path: Path) -> None:
    base = write_folder(tmp_path, {"a.weight": torch.ones(4, 4, dtype=torch.bfloat16)}, {"quant_method": "mxfp4"})
    assert loading.find_tensors(base) == {"a.weight": StoredTensor("a.weight", (4, 4), "BF16")}
    assert loading.describe_storage(base, torch.bfloat16) is None


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({}, "BF16"),
        ({"dtype": "float16"}, "F16"),
        ({"text_config": {"torch_dtype": "float32"}}, "F32"),
        ({"dtype": "float8_e4m3fn"}, "BF16"),
    ],
)
def test_an_export_has_the_type_that_the_config_names(config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    values, scales = quantized((4, 4), (2, 2))
    declared = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    base = write_folder(tmp_path, {"a.weight": values, "a.weight_scale_inv": scales}, declared, **config)
    assert loading.find_tensors(base)["a.weight"].dtype == dtype


def test_the_log_says_what_is_dequantized_and_what_is_ignored(tmp_path: Path) -> None:
    values, scales = quantized((4, 4), (2, 2))
    named = {
        "a.weight": values,
        "a.weight_scale_inv": scales,
        "a.input_scale": torch.ones(1),
        "k_proj.k_scale": torch.ones(1),
        "b": scales + 1,
    }
    base = write_folder(tmp_path, named, {"quant_method": "fp8", "weight_block_size": [2, 2]})
    said = loading.describe_storage(base, torch.bfloat16)
    assert said is not None and said.startswith("base is stored in fp8 (blocks of 2 × 2): 1 of 2 tensors dequantized while loading")
    assert "bfloat16 where they are frozen" in said and said.endswith("2 scales of activations ignored")


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """A slice of the values is read, never all of them."""
    blocks, scales = packed(4, 6, 3)
    base = write_folder(tmp_path, {"w_blocks": blocks, "w_scales": scales}, {"quant_method": "mxfp4"})
    tensor = find_tensors(base, loading.tensor_files(base))["w"]
    taken: list[tuple[int, ...]] = []

    class Slice:
        def __init__(self, values: Tensor) -> None:
            self.values = values

        def __getitem__(self, cut: Any) -> Tensor:
            taken.append(tuple(self.values[cut].shape))
            return self.values[cut]

    class File:
        def get_slice(self, name: str) -> Slice:
            return Slice(load_file(base / "model.safetensors")[name])

    assert read_values(lambda _: File(), tensor, (slice(1, 2), slice(40, 60), slice(2, 5))).shape == (1, 20, 3)
    assert taken == [(1, 3, 1, 16), (1, 3, 1)]
