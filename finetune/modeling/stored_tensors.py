"""The tensors of a base as its model needs them: quantized ones are dequantized slice by slice while they are read.

- fp8 (DeepSeek-V3's format, also of Qwen3-*-FP8): W[i, j] = q[i, j] · s[i // m, j // n] with q in 8 bits and one scale for each block of
  m × n; the last blocks of a row or column may be smaller. The scales are beside the weight, as NAME_scale_inv or NAME_scale; one scale
  for a tensor, for each row or each column is applied likewise. compressed-tensors and fbgemm store the same with other configs.
- mxfp4 (OCP Microscaling Formats 1.0, as gpt-oss stores its experts): NAME_blocks [E, out, G, 16] has two 4-bit numbers (E2M1) in each
  byte, the lower half first, and NAME_scales [E, out, G] the exponent of the 32 in a block: W = e2m1 · 2^(s − 127). The model's parameter
  NAME is [E, in, out] with in = 32·G.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage.base_quantization import ADVICE, FLOATS, StoredForm, find_form, find_raw_tensor
from overtone.finetune.storage.model_security import read_object
from overtone.finetune.storage.safetensors_opening import TensorSlice, WeightsFile, open_weights

if TYPE_CHECKING:
    from pydantic import JsonValue

FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
BLOCKS, SCALES = "_blocks", "_scales"
SCALE_ENDINGS = ("_scale_inv", "_scale")
ACTIVATIONS = re.compile(r"(.*\.)?((input|output|activation|k|v|q|prob|kv)_scale|(input|output|activation)_scale_inv|input_scale_ub)")
"""Names of scales of activations and of the key-value cache: those that calibration for inference measured."""
GROUP = 32
"""Numbers of mxfp4 that share a scale."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of a 4-bit number; the fourth is the sign."""
DECLARED = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the base, and the file's tensors that have its values."""

    name: str
    """Name of the values in the file."""
    shape: tuple[int, ...]
    """Shape that the model needs."""
    dtype: str
    """Type of the dequantized values in an export, as safetensors files name it."""
    form: StoredForm | None = None
    """Form in which the values are stored; None if they are plain numbers."""
    scale: str = ""
    grid: tuple[int, int] = (1, 1)
    """Rows and columns that share a scale."""

    def parts(self) -> tuple[str, ...]:
        """Return the names in the files."""
        return (self.name, self.scale) if self.scale else (self.name,)


@dataclass(frozen=True)
class TensorHeader:
    """Type and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]


def find_tensors(folder: Path, places: Mapping[str, Path]) -> dict[str, StoredTensor]:
    """Name → tensor of the base in `folder`, as its model needs them; scales of activations are none. `places`: name → its file. Raises
    `UserError` for values that are not plain numbers and in no form that can be dequantized."""
    config = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    form, headers = find_form(config, folder), _read_headers(places)
    found: dict[str, StoredTensor] = {}
    if form is not None:
        make = _find_mxfp4 if form.method == "mxfp4" else _find_fp8
        found = make(folder, headers, form, _declared_type(config))
    used = {part for tensor in found.values() for part in tensor.parts()}
    rest = {name: header for name, header in headers.items() if name not in used}
    if found and form is not None and form.method == "fp8":
        rest = {name: header for name, header in rest.items() if not ACTIVATIONS.fullmatch(name)}
    if raw := find_raw_tensor({name: header.dtype for name, header in rest.items()}, headers):
        raise UserError(f"{folder}: {raw}; {ADVICE}")
    if clash := sorted(found.keys() & rest.keys()):
        raise UserError(f"{folder}: {clash[0]} is there twice, quantized and as plain numbers; download the model again")
    return found | {name: StoredTensor(name, header.shape, header.dtype) for name, header in rest.items()}


def describe_form(folder: Path, places: Mapping[str, Path], compute: torch.dtype) -> str | None:
    """Describe for the log in which form a base is stored, and in which form it is loaded; None for plain numbers. `compute`: type of
    frozen weights."""
    tensors = find_tensors(folder, places)
    quantized = [tensor for tensor in tensors.values() if tensor.form is not None]
    if not quantized:
        return None
    ignored = len(places) - sum(len(tensor.parts()) for tensor in tensors.values())
    left = f"; {format_count(ignored, 'scale')} of activations ignored" if ignored else ""
    kind = str(compute).removeprefix("torch.")
    return (
        f"base is stored in {quantized[0].form}: {len(quantized)} of {format_count(len(tensors), 'tensor')} dequantized while loading, to "
        f"fp32 where they are trained and {kind} where they are frozen; an export has plain weights{left}"
    )


def read_values(handle: Callable[[str], WeightsFile], tensor: StoredTensor, slices: tuple[slice, ...] | None) -> Tensor:
    """Return the values of a tensor, or of these slices of it: as they are stored, or dequantized; fp8 to fp32, mxfp4 to bf16, which has
    all of its values. Besides the result, it needs memory for about two copies of it in fp32. `handle`: name → open file."""
    if tensor.form is None:
        file = handle(tensor.name)
        return file.get_tensor(tensor.name) if slices is None else file.get_slice(tensor.name)[slices]
    ranges = _complete_slices(tensor.shape, slices)
    values, scales = handle(tensor.name).get_slice(tensor.name), handle(tensor.scale)
    if tensor.form.method == "mxfp4":
        return _read_mxfp4(values, scales.get_slice(tensor.scale), ranges)
    return _read_fp8(values, scales.get_tensor(tensor.scale), tensor, ranges)


def _read_headers(places: Mapping[str, Path]) -> dict[str, TensorHeader]:
    headers = {}
    for path in sorted(set(places.values())):
        with open_weights(path) as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                headers[name] = TensorHeader(part.get_dtype(), tuple(part.get_shape()))
    return headers


def _declared_type(config: Mapping[str, JsonValue]) -> str:
    """The type of plain weights that config.json names, or else BF16: every quantized model is published for it."""
    inner = config.get("text_config")
    named = [part.get(key) for part in (config, inner) if isinstance(part, dict) for key in ("dtype", "torch_dtype")]
    return next((kind for kind, name in DECLARED.items() if any(str(each).removeprefix("torch.") == name for each in named)), "BF16")


def _find_mxfp4(folder: Path, headers: Mapping[str, TensorHeader], form: StoredForm, dtype: str) -> dict[str, StoredTensor]:
    found = {}
    for blocks, header in headers.items():
        name = blocks.removesuffix(BLOCKS)
        scale = headers.get(name + SCALES)
        if name == blocks or scale is None:
            continue
        if (
            header.dtype != "U8"
            or len(header.shape) != 4
            or header.shape[-1] * 2 != GROUP
            or scale != TensorHeader("U8", header.shape[:-1])
        ):
            raise UserError(
                f"{folder}: {blocks} {[*header.shape]} and {name + SCALES} {[*scale.shape]} are not mxfp4 in the layout of gpt-oss "
                f"([experts, out, in / 32, 16] and [experts, out, in / 32] bytes); download the model again"
            )
        experts, out, groups, _ = header.shape
        found[name] = StoredTensor(blocks, (experts, groups * GROUP, out), dtype, form, name + SCALES)
    return found


def _find_fp8(folder: Path, headers: Mapping[str, TensorHeader], form: StoredForm, dtype: str) -> dict[str, StoredTensor]:
    found = {}
    for name, header in headers.items():
        if header.dtype not in FP8:
            continue
        scales = [name + ending for ending in SCALE_ENDINGS if name + ending in headers]
        if len(scales) != 1:
            raise UserError(f"{folder}: {name} is stored in fp8, with {len(scales)} scales ({name}_scale_inv) beside it; {ADVICE}")
        grid = _find_grid(header.shape, headers[scales[0]], form.block)
        if grid is None:
            declared = f"weight_block_size {[*form.block]}" if form.block else "no weight_block_size"
            raise UserError(
                f"{folder}: {scales[0]} is {headers[scales[0]].dtype} {[*headers[scales[0]].shape]}, which does not fit {name} "
                f"{[*header.shape]} and {declared} of config.json; download the model again"
            )
        found[name] = StoredTensor(name, header.shape, dtype, form, scales[0], grid)
    return found


def _find_grid(shape: Sequence[int], scale: TensorHeader, block: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None if the scale's type or shape has no meaning for a weight of this shape."""
    if scale.dtype not in FLOATS | {"F8_E8M0", "U8"} or len(shape) < 2:
        return None
    *front, rows, columns = shape
    for high, wide in [block] if block else [(128, 128)]:
        if scale.shape == (*front, -(-rows // high), -(-columns // wide)):
            return high, wide
    if scale.shape in ((), (1,)) or scale.shape == (*front, 1, 1):
        return rows, columns
    if scale.shape == (*front, 1, columns) and front:  # experts that are one parameter [experts, in, out], with a scale for each output
        return rows, 1
    return (1, columns) if scale.shape in ((*front, rows, 1), (*front, rows)) else None


def _complete_slices(shape: tuple[int, ...], slices: tuple[slice, ...] | None) -> list[tuple[int, int]]:
    """Begin and end in each dimension."""
    given = [*(slices or ()), *[slice(None)] * (len(shape) - len(slices or ()))]
    bounds = [part.indices(size) for part, size in zip(given, shape, strict=True)]
    return [(start, max(start, stop)) for start, stop, _ in bounds]


def _read_fp8(values: TensorSlice, scales: Tensor, tensor: StoredTensor, ranges: list[tuple[int, int]]) -> Tensor:
    """fp32 values [..., n, k] of these ranges."""
    cut = tuple(slice(start, stop) for start, stop in ranges)
    result: Tensor = values[cut].to(torch.float32)
    if not result.numel():
        return result
    factors = _decode_scales(scales, tensor.shape)
    front = cut[: factors.dim() - 2]
    places = [torch.arange(*each) // size for each, size in zip(ranges[-2:], tensor.grid, strict=True)]
    picked = factors[front].index_select(-2, places[0]).index_select(-1, places[1])
    return result.mul_(picked)


def _decode_scales(scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """fp32 scales with as many dimensions as the weight has, or [1, 1] for a single one."""
    numbers = scales.to(torch.float32)
    if scales.dtype is torch.uint8:  # an exponent, as in the MX formats
        numbers = torch.exp2(numbers - 127)
    if numbers.numel() == 1:
        return numbers.reshape(1, 1)
    return numbers.unsqueeze(-1) if numbers.dim() < len(shape) else numbers


def _read_mxfp4(blocks: TensorSlice, scales: TensorSlice, ranges: list[tuple[int, int]]) -> Tensor:
    """bf16 values [e, in, out] of these ranges."""
    (expert, inside, outside), table = ranges, torch.tensor([*E2M1, *(-value for value in E2M1)])
    groups = slice(inside[0] // GROUP, -(-inside[1] // GROUP))
    cut = (slice(*expert), slice(*outside), groups)
    packed: Tensor = blocks[(*cut, slice(None))]
    result = torch.empty(*packed.shape[:-1], GROUP, dtype=torch.bfloat16)
    exponents = (scales[cut].to(torch.int32) - 127).unsqueeze(-1)
    # Half by half: the indices of a lookup take eight times the bytes of what is looked up.
    result[..., 0::2] = torch.ldexp(table[(packed & 15).to(torch.int32)], exponents).to(torch.bfloat16)
    result[..., 1::2] = torch.ldexp(table[(packed >> 4).to(torch.int32)], exponents).to(torch.bfloat16)
    begin = inside[0] - groups.start * GROUP
    return result.flatten(-2)[..., begin : begin + inside[1] - inside[0]].transpose(1, 2)
