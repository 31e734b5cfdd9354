"""Model loading: resolves a base model, freezes parameters, and loads each rank's shard directly from safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from overtone.finetune.distributed.sharding import local_shard, plain_name
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import added_parameters, quantization, stored_tensors
from overtone.finetune.modeling.added_parameters import Initializer
from overtone.finetune.modeling.lora_adapters import init_adapter, init_magnitudes, is_adapter, is_magnitude, layer_of
from overtone.finetune.modeling.stored_tensors import StoredTensor
from overtone.finetune.storage import files
from overtone.finetune.storage.base_quantization import FLOATS, find_form
from overtone.finetune.storage.foreign_model_formats import explain_foreign_model
from overtone.finetune.storage.model_resolver import MODEL_FILES, resolve_model
from overtone.finetune.storage.model_security import read_object
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.finetune.storage.tensor_layouts import Reader, TensorLayout, read_through

SHAPING = frozenset({".safetensors", ".json", ".jinja", ".model", ".txt", ".codes", ".tiktoken"})
"""Types of files that loaders of transformers read: weights, configs, tokenizers, chat templates."""
DESCRIBING = ("README*", "LICENSE*", "NOTICE*", "USE_POLICY*", "*.index.json", "overtone.json", "trainer_state.json", "*_results.json")
"""Files of these types that affect nothing: documents, weight indexes, records of how a base was trained."""


NONE_ADDED: Mapping[str, Initializer] = MappingProxyType({})
AS_STORED: Mapping[str, TensorLayout] = MappingProxyType({})
PIECE_BYTES = 2**28
"""Size in fp32 of what is read of a tensor at once."""


def resolve_source(source: str | None, revision: str | None, patterns: Sequence[str] = MODEL_FILES, option: str = "model.source") -> Path:
    """Local folder of a base model, as `resolve_model` finds it. Raises `UserError`, in the name of `option`, if there is none, and for a
    folder without a config.json; also for weights that config.json declares to be quantized in a form that cannot be dequantized."""
    if source is None:
        raise UserError("model.source is not set: give a hub name or a folder, as in --model.source Qwen/Qwen3-TTS-12Hz-0.6B-Base")
    folder = resolve_model(option, source, patterns, revision)
    if not (folder / "config.json").is_file():
        reason = explain_foreign_model(folder) or "the folder contains no config.json, so it is not a model"
        raise UserError(f"{option} {source}: {reason}")
    find_form(read_object(folder / "config.json"), folder)
    return folder.resolve() if Path(source).is_dir() else folder


def file_digests(folder: Path, inside: Iterable[str] = ()) -> dict[str, str]:
    """Return the path in `folder` → SHA-256, for each file of a base that affects samples, the model or an export.

    These are all files of a type that a loader reads (`SHAPING`) at the top level of the folder, and at any depth of the folders `inside`
    (`Recipe.base_folders`), without documents and training records (`DESCRIBING`). By type, not by name, since each tokenizer class has
    its own file names. Other folders are ignored: runs, exports and checkpoints may be stored beside a base.
    """
    paths = [*folder.iterdir(), *(path for name in inside for path in (folder / name).rglob("*"))]
    named = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix in SHAPING and path.is_file()}
    if "config.json" not in named:
        raise UserError(f"{folder} contains no config.json, so it is not a model; download it again, or give another model.source")
    return {name: files.digest(path) for name, path in sorted(named.items()) if not any(path.match(pattern) for pattern in DESCRIBING)}


def content_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 over weights and config.json only, from `file_digests`: one digest of a base, for messages, model cards and caches."""
    weights = sorted(name for name in digests if name.endswith(".safetensors") and "/" not in name)
    return hashlib.sha256("".join(f"{name} {digests[name]}\n" for name in ["config.json", *weights]).encode()).hexdigest()


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the tensor name → the safetensors file in `folder` that contains it. Raises `UserError` if there are no such files, and for a
    damaged one."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open_weights(path) as file:
            if twice := sorted(found.keys() & set(file.keys())):
                raise UserError(
                    f"{folder}: {twice[0]} is in {found[twice[0]].name} and in {path.name} ({len(twice)} such tensors); "
                    "the folder contains files of two models, so remove those of one"
                )
            found |= dict.fromkeys(file.keys(), path)
    if not found:
        raise UserError(f"{folder} contains no *.safetensors weights; other formats can run code when read, so convert the model first")
    return found


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Name → tensor of a base, as its model needs it: a quantized one without its scales (`stored_tensors`). Raises `UserError` if there
    are no weights, and for values that are not plain numbers and cannot be dequantized."""
    return stored_tensors.find_tensors(folder, tensor_files(folder))


def describe_storage(base: Path, compute: torch.dtype) -> str | None:
    """Describe for the log how a base is quantized, and in which form it is loaded; None for a base with plain weights, or without weights.
    `compute`: the type of frozen weights."""
    return stored_tensors.describe_form(base, tensor_files(base), compute) if any(base.glob("*.safetensors")) else None


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the tensor name → shape, from the files' headers, as `find_tensors`."""
    return {name: tensor.shape for name, tensor in find_tensors(folder).items()}


def freeze(model: nn.Module, trainable: Callable[[str], bool], frozen_dtype: torch.dtype) -> None:
    """Set `requires_grad` of each parameter, and cast frozen ones to `frozen_dtype` and trained ones to fp32: libraries create them in the
    type that config.json names. Parameters are on meta. Raises `UserError` if all are frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name))
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else frozen_dtype)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("nothing would be trained: every parameter is frozen; check options and model.lora")


def base_name(name: str) -> str:
    """Return a parameter's name in the base's files, without the parts that wrappers and adapters add."""
    return plain_name(name).replace(".base_layer.", ".")


def materialise(
    model: nn.Module,
    base: Path,
    buffers: dict[str, Tensor],
    device: torch.device,
    seed: int,
    home: torch.device | None = None,
    added: Mapping[str, Initializer] = NONE_ADDED,
    layouts: Mapping[str, TensorLayout] = AS_STORED,
) -> None:
    """Allocate a sharded meta model and load its weights; each rank reads only its own slices. Buffers are placed on `device`, shards on
    `home` (default: `device`). `added`: parameters that are initialized instead of being read (`Loaded.added`).
    `layouts`: `Loaded.layouts`.

    Raises `UserError` naming every parameter that the base lacks or has in another shape, and buffers without values.
    """
    home = home or device
    if unfilled := sorted(name for name, value in model.named_buffers() if value.is_meta and plain_name(name) not in buffers):
        raise UserError(
            f"the recipe's load leaves buffers on the meta device: {', '.join(unfilled[:5])}; build the model with "
            "accelerate.init_empty_weights(include_buffers=False), or compute them again: their memory would not be initialized"
        )

    def place(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return torch.empty_like(tensor, device=home)
        # A tied parameter comes here once for each of its modules: from the second time on, it must stay at home.
        return tensor.to(home if isinstance(tensor, nn.Parameter) else device)

    # Not `to_empty`: it would also clear the buffers, and a model with an invalid rotary table trains without an error.
    model._apply(place)
    if problems := find_misfits(model, base, added, layouts):
        raise UserError(f"{base} does not match the model in {len(problems)} tensors:\n  " + "\n  ".join(problems[:20]))
    with torch.no_grad(), open_base(base, layouts) as read:
        for name, parameter in model.named_parameters():
            if (initializer := added.get(plain_name(name))) is not None:
                value = added_parameters.initialize(plain_name(name), parameter.shape, seed, initializer)
                local_shard(parameter).copy_(value[local_slices(parameter)[1]])
            else:
                _fill(name, parameter, read, seed)
        own = dict(model.named_buffers())
        for name, value in buffers.items():
            own[name].copy_(value)


@contextlib.contextmanager
def open_base(folder: Path, layouts: Mapping[str, TensorLayout] = AS_STORED) -> Iterator[Reader]:
    """Read tensors, or slices of them, from a base's safetensors; each file is opened once and mapped, not read. Quantized ones are
    dequantized slice by slice. `layouts`: name that the reader is given → how the tensor is composed, where it is not stored as such."""
    places = tensor_files(folder)
    tensors = stored_tensors.find_tensors(folder, places)
    with contextlib.ExitStack() as stack:
        handles = {path: stack.enter_context(open_weights(path)) for path in set(places.values())}

        def read_stored(name: str, slices: tuple[slice, ...] | None) -> Tensor:
            return stored_tensors.read_values(lambda part: handles[places[part]], tensors[name], slices)

        yield read_through(layouts, read_stored)


def find_misfits(model: nn.Module, base: Path, added: Collection[str] = (), layouts: Mapping[str, TensorLayout] = AS_STORED) -> list[str]:
    """Return the tensors that the base lacks, has in another shape or as integers, without the `added` ones, one line each. Compares full
    shapes, since a slice of a larger tensor would load without an error. `layouts`: `Loaded.layouts`."""
    tensors = find_tensors(base)
    known = {name: TensorLayout.of(name, tensor.shape) for name, tensor in tensors.items()} | {**layouts}
    wanted = dict(
        _expected(base_name(name), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if not is_adapter(name) and plain_name(name) not in added
    )
    missing = [f"{name} is missing" for name in wanted if name not in known]
    found = {name: (_name_stored(name, known[name]), shape) for name, shape in wanted.items() if name in known}
    other = [
        f"{stored} is {(*known[name].shape,)} there, the model has {shape}"
        for name, (stored, shape) in found.items()
        if known[name].shape != shape
    ]
    used = sorted({part for name in found for part in known[name].parts()})
    raw = [f"{name} is stored as {tensors[name].dtype}, which are no weights" for name in used if tensors[name].dtype not in FLOATS]
    return missing + other + raw


def _name_stored(name: str, layout: TensorLayout) -> str:
    """A parameter by its name in the base, or by its own if several tensors are its parts."""
    parts = layout.parts()
    return next(iter(parts)) if len(parts) == 1 else name


def _expected(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the base's tensor for a parameter."""
    weight = quantization.weight_of(name)
    return (name, shape) if weight is None else (weight, quantization.original_shape(name, shape))


def _fill(name: str, parameter: nn.Parameter, read: Reader, seed: int) -> None:
    slices = local_slices(parameter)[1]
    local = local_shard(parameter)
    if is_magnitude(name):
        adapted = base_name(layer_of(plain_name(name))) + ".weight"
        local.copy_(init_magnitudes(read(adapted, (*slices, slice(None)))))
    elif is_adapter(name):
        local.copy_(init_adapter(plain_name(name), parameter.shape, seed)[slices])
    elif (weight := quantization.weight_of(base_name(name))) is not None:
        local.copy_(quantization.bytes_of(name, read(weight, (slices[0], slice(None)))))
    elif not parameter.dim():
        local.copy_(read(base_name(name), None))
    else:
        for piece in _split_rows(slices):
            start = piece[0].start - slices[0].start
            local[start : start + piece[0].stop - piece[0].start].copy_(read(base_name(name), piece))


def _split_rows(slices: tuple[slice, ...]) -> Iterator[tuple[slice, ...]]:
    """The slices in blocks of rows of about `PIECE_BYTES` in fp32: to dequantize a tensor takes memory for copies of what is read at
    once."""
    width = 4 * math.prod(part.stop - part.start for part in slices[1:])
    height = max(1, PIECE_BYTES // max(1, width))
    for start in range(slices[0].start, slices[0].stop, height):
        yield (slice(start, min(start + height, slices[0].stop)), *slices[1:])


def local_slices(tensor: Tensor) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """Return the shape of this rank's shard, and its slices in the full tensor."""
    if not isinstance(tensor, DTensor):
        return tuple(tensor.shape), tuple(slice(0, size) for size in tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    slices = slices_at(tensor.shape, tensor.device_mesh, tensor.placements, coordinate)
    return tuple(part.stop - part.start for part in slices), slices


def slices_at(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement], coordinate: Sequence[int]) -> tuple[slice, ...]:
    """Slices of the full tensor that the rank at this coordinate of the mesh has."""
    slices = [slice(0, size) for size in shape]
    # `fully_shard` shards the result of tensor parallelism, though its mesh axis comes first; torch marks that as strided.
    for axis, placement in sorted(enumerate(placements), key=lambda each: isinstance(each[1], _StridedShard)):
        if isinstance(placement, Shard | _StridedShard):
            slices[placement.dim] = chunk(slices[placement.dim], mesh.size(axis), coordinate[axis])
    return tuple(slices)


def chunk(part: slice, count: int, number: int) -> slice:
    """Return one of `count` pieces of equal length, of which the last ones may be shorter or empty (torch.chunk's rule, and DTensor's)."""
    length = -(-(part.stop - part.start) // count)
    start = min(part.start + number * length, part.stop)
    return slice(start, min(start + length, part.stop))
