"""Storage form of the weights of a model folder: as plain numbers, in a form that `overtone.finetune.modeling.stored_tensors` dequantizes,
or in another one, which is refused by name. Decided by config.json, the files beside it, and the tensors' names and types. Imports no
torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from overtone.finetune.errors import UserError
from overtone.finetune.terminal import printable

if TYPE_CHECKING:
    from pydantic import JsonValue

DECLARING = frozenset({"quantization_config", "compression_config", "quantization"})
"""Keys of config.json, at any depth, that say how weights are quantized; the last one is MLX's."""
DECLARING_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quantization_config.json": "an unknown method",
    "quanto_qmap.json": "quanto",
}
"""Files of a quantized model whose config.json may declare nothing → the method of the tools that write them."""
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types, as safetensors files name them, whose values are the weights."""
QUANTIZED_PARTS = re.compile(
    r"(.*[._])?(qweight|qzeros|g_idx|absmax|nested_absmax|quant_map|nested_quant_map|quant_state\..*|SCB|weight_format"
    r"|weight_(packed|shape|scale|scale_2|scale_inv|zero_point|global_scale|g_idx))"
)
"""Names of tensors that only quantized weights have, in the formats of GPTQ, AWQ, bitsandbytes, compressed-tensors and modelopt."""
SCALE = re.compile(r"(?P<weight>.+)_(scale|scales|scale_inv|scale_2|zero_point|blocks|packed)|(?P<layer>.+)\.(scales|biases)")
"""Names of scales that an ordinary parameter can also have; they are some if the weight that they belong to is beside them."""
WEIGHT = re.compile(r"(.*\.)?(weight|in_proj_weight|\w+_proj)")
"""Names of tensors that are weights, regardless of their type."""


class StoredForm(NamedTuple):
    """A form of quantized weights that can be dequantized."""

    method: Literal["fp8", "mxfp4"]
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, if config.json names them."""

    def __str__(self) -> str:
        if self.method == "mxfp4":
            return "mxfp4 (4-bit numbers in blocks of 32)"
        return "fp8" if self.block is None else f"fp8 (blocks of {self.block[0]} × {self.block[1]})"


def find_form(config: Mapping[str, JsonValue], folder: Path) -> StoredForm | None:
    """Return the form of the weights in `folder`, by its `config` and its files; None: plain numbers. Raises `UserError` for a form that
    cannot be dequantized."""
    found: dict[StoredForm, str] = {}
    for place, declared in _find_declarations(config, ""):
        found.setdefault(_read_declaration(declared, f"{folder / 'config.json'}: {place}"), place)
    if len(found) > 1:
        raise UserError(f"{folder / 'config.json'}: {' and '.join(found.values())} declare different quantizations; {ADVICE}")
    for name, method in DECLARING_FILES.items():
        if not found and (folder / name).is_file():
            raise UserError(f"{folder / name} says that the weights are quantized ({method}), which is not supported; {ADVICE}")
    return next(iter(found), None)


ADVICE = (
    "give the release of the model with plain weights (bf16, fp16 or fp32); `--model.quantization nf4` with LoRA keeps those in 4 bits "
    "while training"
)


def drop_declarations(value: Any) -> Any:
    """Return a JSON document without the keys that say how weights are quantized, at any depth, and with bfloat16 as the type of weights
    instead of one with 8 bits."""
    if isinstance(value, list):
        return [drop_declarations(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: drop_declarations(each) for key, each in value.items() if key not in DECLARING}
    return {key: "bfloat16" if key in ("dtype", "torch_dtype") and "float8" in str(each) else each for key, each in kept.items()}


def find_raw_tensor(types: Mapping[str, str], others: Collection[str] = ()) -> str | None:
    """Return name and fault of the first tensor whose values are not those of a weight: in 8 or 4 bits, or a scale beside one; None without
    any. `types`: name → type in the file, without the tensors that a form accounts for. `others`: the names of those."""
    every = {*types, *others}
    for name, kind in sorted(types.items()):
        if kind.startswith(("F8", "F6", "F4")) or (kind not in FLOATS and WEIGHT.fullmatch(name)):
            return f"{name} is stored as {kind}, with no scale that config.json declares"
        scaled = SCALE.fullmatch(name)
        if QUANTIZED_PARTS.fullmatch(name) or (scaled and _has_weight(scaled, every)):
            return f"{name} is a part of a quantized weight in no form that config.json declares"
    return None


def check_plain(folder: Path, config: Mapping[str, JsonValue], types: Mapping[str, str], option: str) -> None:
    """Raises `UserError` for a model whose weights are not plain numbers, where a library loads them. `types`: as in `find_raw_tensor`."""
    if (form := find_form(config, folder)) is not None:
        raise UserError(f"{option} {folder}: its weights are stored in {form}, and this command reads plain weights only; {ADVICE}")
    if (raw := find_raw_tensor(types)) is not None:
        raise UserError(f"{option} {folder}: {raw}; {ADVICE}")


def _has_weight(scaled: re.Match[str], every: Collection[str]) -> bool:
    weight, layer = scaled["weight"], scaled["layer"]
    if weight:
        return weight in every or all(f"{weight}_{part}" in every for part in ("blocks", "scales"))
    return f"{layer}.weight" in every


def _find_declarations(value: object, place: str) -> Iterator[tuple[str, JsonValue]]:
    """Path and value of each key that declares a quantization, at any depth."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        path = f"{place}.{key}" if place else str(key)
        if key in DECLARING:
            if child not in (None, {}, False):
                yield path, child
        else:
            yield from _find_declarations(child, path)


def _read_declaration(declared: Any, place: str) -> StoredForm:
    """The form that a declaration means. Raises `UserError`, in the name of its `place`, if that cannot be dequantized."""
    method = declared.get("quant_method") if isinstance(declared, dict) else None
    if method == "mxfp4":
        return StoredForm("mxfp4")
    if method == "fbgemm_fp8":  # a scale for each output
        return StoredForm("fp8")
    if method == "compressed-tensors" and (form := _read_float_groups(declared)) is not None:
        return form
    if method != "fp8":
        raise UserError(f"{place}: the weights are quantized with {_name_method(declared)}, which is not supported; {ADVICE}")
    block = declared.get("weight_block_size")
    if block is None:
        return StoredForm("fp8")
    if not (isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
        raise UserError(
            f"{place}.weight_block_size: {printable(repr(block))[:60]}, expected two positive integers; download the model again"
        )
    return StoredForm("fp8", (block[0], block[1]))


FLOAT_FORMATS = frozenset({"float-quantized", "naive-quantized"})
"""Formats of compressed-tensors that store values of 8 bits as they are."""


def _read_float_groups(declared: Mapping[str, JsonValue]) -> StoredForm | None:
    """The form that a config of compressed-tensors describes, if all its weights are in fp8 with scales of one kind; otherwise None."""
    groups = declared.get("config_groups")
    sparsity = declared.get("sparsity_config") or {}
    if declared.get("format") not in FLOAT_FORMATS or not isinstance(groups, dict) or not groups or declared.get("transform_config"):
        return None
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        return None
    forms = {_read_float_weights(group) for group in groups.values()}
    return forms.pop() if len(forms) == 1 else None


def _read_float_weights(group: Any) -> StoredForm | None:
    """The form of the weights of one group; None if they are not in fp8."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or group.get("format") not in {None, *FLOAT_FORMATS}:
        return None
    if (weights.get("type"), weights.get("num_bits"), weights.get("symmetric", True)) != ("float", 8, True):
        return None
    strategy, size, block = (weights.get(key) for key in ("strategy", "group_size", "block_structure"))
    if strategy in ("tensor", "channel"):
        return StoredForm("fp8")
    if strategy == "group":
        block = [1, size]
    if strategy in ("group", "block") and isinstance(block, list) and [type(each) is int and each > 0 for each in block] == [True, True]:
        return StoredForm("fp8", (block[0], block[1]))
    return None


def _name_method(declared: JsonValue) -> str:
    """The method of a declaration with what distinguishes its variants, for a message."""
    if not isinstance(declared, dict):
        return printable(repr(declared))[:60]
    named = declared.get("quant_method") or next((name for key, name in BY_KEY.items() if key in declared), "an unnamed method")
    details = [f"{key} {declared[key]}" for key in VARIANTS if isinstance(declared.get(key), str | int) and declared[key] is not False]
    variant = f" ({', '.join(details)})" if details else ""
    return printable(f"{named}{variant}")[:120]


BY_KEY = {
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "config_groups": "compressed-tensors",
    "quant_algo": "modelopt",
    "group_size": "MLX",
}
"""Keys of declarations that name no method → the method."""
VARIANTS = ("format", "quant_algo", "bits", "load_in_4bit", "load_in_8bit", "quant_type", "weights", "group_size")
