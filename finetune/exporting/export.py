"""Export of a checkpoint to a folder that the model's own package can load.

Trained tensors come from the checkpoint, all others from the base model; LoRA is merged in fp32. Works tensor by tensor, needs no GPU, and
creates the folder atomically by one rename.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.checkpointing.rank_shards import DTYPES, TensorEntry
from overtone.finetune.config import Lora
from overtone.finetune.config_sources import read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD, encode_card
from overtone.finetune.exporting.model_card import render_card
from overtone.finetune.exporting.model_card_metadata import README, describe_target, name_model, read_base_metadata
from overtone.finetune.modeling import added_parameters, expert_adapters, loading, lora_adapters, quantization
from overtone.finetune.modeling.expert_adapters import AdaptedExperts
from overtone.finetune.recipe import CheckpointState, ExportPlan, choose_recipe, find_recipe, load_recipe, parse_recipe_state
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.base_quantization import drop_declarations
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_security import copy_for_export
from overtone.finetune.storage.tensor_layouts import (
    Box,
    Reader,
    TensorLayout,
    count_elements,
    find_bounds,
    invert_layouts,
    place_of,
    read_through,
)
from overtone.finetune.terminal import print_diagnostic

DTYPE_FLAGS = {None: None, "bf16": torch.bfloat16, "fp32": torch.float32}
"""Value of --dtype → type of the weights; None: as in the base."""
LARGEST_FILE_BYTES = 5 * 10**9
"""Largest weights file; larger weights are split over several files, as the hub's tools do."""
LARGEST_STRENGTH = 2.0
"""Beyond 1 an update is extrapolated, which soon leaves the range in which a model works."""
UNCONVERTED = ".unconverted"
"""Folder inside of the temporary one, with what a conversion reads."""
BLOCK_BYTES = 32 * 2**20
"""Tensors are read, merged and written in blocks of rows of about this size in fp32. Merging keeps five of them in memory."""


@dataclass(frozen=True)
class Source:
    """Sources of an exported model's tensors: the checkpoint, the base model and the recipe's export plan."""

    state: CheckpointState
    trained: Reader
    shapes: dict[str, tuple[int, ...]]
    """Tensor name → shape, for all tensors in the checkpoint, whose names are those of the model's parameters."""
    stored: Reader
    """The base's tensors by their names in its files."""
    plan: ExportPlan
    dtype: torch.dtype | None
    strength: float = 1.0
    """Factor of the update: 0 is the base, 1 the trained model."""

    @property
    def lora(self) -> Lora | None:
        return None if self.state["lora"] is None else Lora.model_validate(self.state["lora"])

    @cached_property
    def experts(self) -> dict[str, AdaptedExperts]:
        """Parameters of experts that have an adapter, by name."""
        return {each["name"]: AdaptedExperts(each["name"], each["transposed"]) for each in self.state["experts"]}

    def base(self, name: str, slices: tuple[slice, ...] | None) -> Tensor:
        """A parameter as the base has it."""
        return read_through(self.plan.layouts, self.stored)(name, slices)


@dataclass(frozen=True)
class ExportedTensor(TensorEntry):
    """A tensor of the exported weights."""

    stored: str | None = None
    """Name of the base's tensor that it replaces; None for a new parameter."""
    changed: tuple[Box, ...] = ()
    """Its boxes that are boxes of trained or adapted parameters; the others are as in the base."""


def export(
    place: Path,
    target: Path,
    form: str | None = None,
    step: int | None = None,
    dtype: str | None = None,
    moved_base: Path | None = None,
    adapter_only: bool = False,
    recipe: str | None = None,
    name: str | None = None,
    strength: float = 1.0,
    base_name: str | None = None,
    quantize: str | None = None,
) -> Path:
    """Export a checkpoint to `target`, which is also returned. Raises `UserError` before any work is done; a failure leaves no files.

    `recipe`: name or folder of the recipe; by default the one that the checkpoint names. `name`: of the model in the examples of its card,
    such as its name on the hub; by default `target`. `strength`: factor of the update, see `weaken_update`. `base_name`: of the base in an
    adapter's config, from which peft loads it; by default the one that it was trained from, which may be a folder of this machine.
    `quantize`: type of the numbers, for a format with a conversion (`Conversion.choose_type`).
    """
    check_strength(strength)
    if target.exists():
        raise UserError(f"--to {target} already exists; choose another folder or remove it")
    chosen = checkpoint.find(place, step)
    state = checkpoint.read_state(chosen)
    maker = load_recipe(find_recipe(choose_recipe(chosen / "state.json", state["recipe"], recipe)))
    if form is not None and form not in maker.formats:
        raise UserError(f"--format {form}: the recipe offers {', '.join(maker.formats)}")
    form = form or maker.formats[0]
    base = find_base(state, maker.base_folders, moved_base)
    with rank_shards.open_shards(chosen) as (trained, shapes), loading.open_base(base) as read_stored:
        check_checkpoint(chosen, state, shapes)
        buffers = {name: trained(name, None) for name in state["buffers"]}
        render = partial(render_card, inherited=read_base_metadata(base), example=maker.inference.example, unit=maker.unit)
        stored = parse_recipe_state(maker.State, state["recipe_state"], chosen / "state.json")
        plan = add_readme(maker.export(base, stored, buffers, form), chosen, state, name or describe_target(target), render)
        number, noted = DTYPE_FLAGS[dtype], note_strength(plan, strength)
        source = Source(state=state, trained=trained, shapes=shapes, stored=read_stored, plan=noted, dtype=number, strength=strength)
        check_shapes(chosen, source, base)
        number_type = choose_number_type(plan, form, quantize, dtype, adapter_only)
        if plan.conversion is not None:  # in bf16, most of a small update would be rounded away before the other program's type is reached
            source = replace(source, dtype=torch.float32)
        card = describe_origin(chosen, state, form, strength)
        if adapter_only or (plan.conversion is not None and plan.conversion.of_adapter):
            option = "--adapter-only" if adapter_only else f"--format {form}"
            write_adapter(select_adapter(source, form, base, base_name, option), plan, base, target, card, number_type)
        else:
            entries = [entry for entry in exported_entries(source, base) if plan.keep(entry.name)]
            check_accounted(source, entries)
            write(source, entries, "model", base, target, card, number_type)
        if plan.conversion is not None:
            for line in plan.conversion.describe_use(number_type):
                print_diagnostic(line)
    return target


def describe_origin(chosen: Path, state: CheckpointState, form: str, strength: float) -> dict[str, Any]:
    """Return what the export's card says of the checkpoint `chosen`: only the last parts of its path, since a published model must not
    reveal folders of this machine."""
    origin = {"recipe": state["recipe"], "format": form, "step": state["step"], "checkpoint": "/".join(chosen.parts[-3:])}
    return origin if strength == 1 else {**origin, "strength": strength}


def write_adapter(adapter: Source, plan: ExportPlan, base: Path, target: Path, card: dict[str, Any], number_type: str) -> None:
    """Write what `select_adapter` has chosen, and print what loading it needs. `plan`: of the whole export."""
    if any(tensor.form for tensor in loading.find_tensors(base).values()):
        print_diagnostic(
            f"note: {adapter.state['base']['source']} is quantized, and the adapter was trained on its dequantized weights: load it on "
            "those (on a base that transformers loads with `dequantize=True`), or export without --adapter-only"
        )
    if adapter.experts:
        print_diagnostic(
            f"note: the adapter is also of experts that are one parameter ({next(iter(adapter.experts))}, …): peft 0.19 or newer "
            "loads it, with a version of transformers in which they are one parameter, too"
        )
    entries = [
        ExportedTensor(name, adapter.dtype or torch.float32, shape, changed=TensorLayout.of(name, shape).pieces)
        for name, shape in sorted(adapter.shapes.items())
    ]
    write(adapter, entries, "adapter_model", base, target, card, number_type)
    if plan.adapter_files and plan.conversion is None:
        print_diagnostic(f"note: beside the adapter are the tokenizer and chat template of the run: {', '.join(plan.adapter_files)}")


def check_strength(strength: float) -> None:
    """Raises `UserError` for a strength outside of the range in which an interpolation makes sense."""
    if not 0 <= strength <= LARGEST_STRENGTH:  # also NaN
        raise UserError(f"--strength {strength:g}: give a number from 0 to {LARGEST_STRENGTH:g}; 0 is the base, 1 the model as trained")


def note_strength(plan: ExportPlan, strength: float) -> ExportPlan:
    """Return the plan with the strength in its README.md, if there is one and the strength is not 1."""
    if strength == 1 or README not in plan.files:
        return plan
    text = f"\n## Strength\nThe update of the training was applied with strength {strength:g} (0: the base model, 1: as trained).\n"
    return replace(plan, files={**plan.files, README: plan.files[README].rstrip(b"\n") + b"\n" + text.encode()})


def check_checkpoint(chosen: Path, state: CheckpointState, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises `UserError` for a checkpoint whose files do not match each other; its export would be a wrong model."""
    if missing := sorted(set(state["buffers"]) - set(shapes)):
        raise UserError(f"{chosen}: state.json lists {', '.join(missing[:4])}, but no file contains them; choose another checkpoint")
    if missing := sorted(set(state["added"]) - set(shapes)):
        raise UserError(
            f"{chosen}: state.json lists the new {', '.join(missing[:4])}, but no file contains them; choose another checkpoint"
        )
    check_experts(chosen, state, {name: shape for name, shape in shapes.items() if not rank_shards.is_moment(name)})


def check_experts(chosen: Path, state: CheckpointState, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises `UserError` unless the experts' adapters of state.json are those of the files, A [E, r, in] and B [E, out, r] each."""
    listed = [AdaptedExperts(each["name"], each["transposed"]) for each in state["experts"]]
    parts = {name for each in listed for name in (each.down, each.up)}
    found = {name for name in shapes if lora_adapters.is_adapter(name) and not lora_adapters.is_of_layer(name)}
    if other := sorted(parts ^ found):
        raise UserError(
            f"{chosen}: the experts' adapters of state.json are not those of its files ({', '.join(other[:4])}); choose another checkpoint"
        )
    for each in listed:
        down, up, rank = shapes[each.down], shapes[each.up], state["lora"]["rank"] if state["lora"] else None
        if not len(down) == len(up) == 3 or (down[0], down[1], up[2]) != (up[0], rank, rank):
            raise UserError(
                f"{chosen}: {each.down} {[*down]} and {each.up} {[*up]} are no adapter of rank {rank}; choose another checkpoint"
            )


def check_shapes(chosen: Path, source: Source, base: Path) -> None:
    """Raises `UserError` for a checkpoint with a tensor in another shape than in the base."""
    whole = loading.tensor_shapes(base) | {name: (*layout.shape,) for name, layout in source.plan.layouts.items()}
    known = {name: shape for name, shape in find_changed_shapes(source).items() if name in whole}
    other = [f"{name} is {shape}, in the base {whole[name]}" for name, shape in known.items() if shape != whole[name]]
    if other:
        raise UserError(f"{chosen}: shapes differ from those of its base ({'; '.join(other[:4])}); choose another checkpoint")


def find_changed(source: Source) -> dict[str, TensorLayout]:
    """Map the trained and adapted parameters, without the new ones, to the tensors of the base of which they consist."""
    shapes = find_changed_shapes(source)
    return {name: source.plan.layouts.get(name) or TensorLayout.of(name, shape) for name, shape in shapes.items()}


def find_changed_shapes(source: Source) -> dict[str, tuple[int, ...]]:
    """Return the shapes of trained and adapted parameters, without the new ones; those of adapted ones follow from their adapters."""
    shapes = {each.name: each.shape(source.shapes[each.down], source.shapes[each.up]) for each in source.experts.values()}
    for name, shape in source.shapes.items():
        if rank_shards.is_moment(name) or name in source.state["added"]:
            continue
        if not lora_adapters.is_adapter(name):
            shapes[name] = shape
        elif name.endswith(lora_adapters.UP):
            layer = lora_adapters.layer_of(name)
            shapes[f"{layer}.weight"] = (shape[0], source.shapes[layer + lora_adapters.DOWN][1])
    return shapes


def add_readme(plan: ExportPlan, chosen: Path, state: CheckpointState, name: str, render: Callable[..., str]) -> ExportPlan:
    """Return the plan with a README.md, which the recipe writes from the checkpoint's state and config, or else `render`; its examples use
    the model's `name`."""
    if plan.readme is None and README in plan.files:
        return replace(plan, files={**plan.files, README: name_model(plan.files[README], name)})
    if plan.readme is None and README in plan.copy:
        return plan
    settings = read_config_file(chosen / "config.yaml").values
    if strange := [name for name in ("model", "data", "train", "options") if not isinstance(settings.get(name), dict)]:
        raise UserError(f"{chosen / 'config.yaml'} has no section {', '.join(strange)}; choose another checkpoint")
    make_text = plan.readme or partial(render, metadata=plan.metadata)
    text = make_text(state, input_files.read_text(chosen / "config.yaml"))
    return replace(plan, files={**plan.files, README: name_model(text.encode(), name)})


def choose_number_type(plan: ExportPlan, form: str, quantize: str | None, dtype: str | None, adapter_only: bool) -> str:
    """Return the type of the numbers in a converted export; empty without a conversion. Raises `UserError` if the flags contradict the
    format."""
    if plan.conversion is None:
        if quantize is not None:
            raise UserError(
                f"--quantize {quantize}: the format {form} has the weights as they were trained; remove the flag, or give --dtype"
            )
        return ""
    if adapter_only:
        raise UserError(f"--adapter-only --format {form}: this format itself says whether it has the adapter alone; remove one of the two")
    if dtype is not None:
        raise UserError(f"--dtype {dtype}: the numbers of the format {form} are converted from fp32; choose their type with --quantize")
    return plan.conversion.choose_type(quantize)


GIVE_BASE = "give its folder with --base FOLDER"


def find_base(state: CheckpointState, inside: tuple[str, ...], moved: Path | None = None, remedy: str = GIVE_BASE) -> Path:
    """Return the folder of the base model that the checkpoint was trained on, verified by its digests. Raises `UserError` for any other
    base.

    `moved`: its current folder or hub name, if it was moved. `inside`: `Recipe.base_folders`. `remedy`: what to do if it is not there.
    """
    known = state["base"]
    if moved is not None:  # in another repository, the recorded commit does not exist
        base = loading.resolve_source(str(moved), known["revision"] if str(moved) == known["source"] else None, option="--base")
    else:
        try:
            base = loading.resolve_source(known["source"], known["revision"], option="the base model of this checkpoint,")
        except UserError as error:
            raise UserError(f"{error}; if it was moved, {remedy}") from None
    found = loading.file_digests(base, inside)
    if checkpoint.is_other_base(known, {"revision": commit_of(base), "files": found}):
        named = ", ".join(checkpoint.list_changed_files(known["files"], found))
        raise UserError(f"the base model at {base} is not the one that was trained on ({named}); restore that one, or {remedy}")
    return base


def select_adapter(source: Source, form: str, base: Path, base_name: str | None, option: str) -> Source:
    """The adapters under peft's names, with peft's config; new parameters are in its `modules_to_save`. Raises `UserError` if the export
    also changes other tensors."""
    if source.lora is None:
        raise UserError(f"{option}: this run trained all weights and has no adapter; export the whole model")
    if source.plan.edit:
        raise UserError(
            f"{option}: the format {form} also changes {', '.join(source.plan.edit)}, which an adapter cannot contain; "
            "remove the flag, or choose another --format"
        )
    if source.lora.dora and source.strength != 1:
        raise UserError(
            f"--strength {source.strength:g} {option}: the lengths of DoRA cannot be scaled without the base's weights; export the "
            "whole model, or remove --strength"
        )
    adapters = [name for name in source.shapes if lora_adapters.is_of_layer(name) and not rank_shards.is_moment(name)]
    added = source.state["added"]
    composed = {part for layout in source.plan.layouts.values() for part in layout.parts()}
    check_whole_modules(set(added), (loading.find_tensors(base).keys() - composed | source.plan.layouts.keys()) - set(added))
    own = {lora_adapters.peft_name(name): name for name in [*adapters, *added]}
    of_experts = expert_adapters.name_in_peft(source.experts.values())
    layers = {lora_adapters.layer_of(name) for name in adapters}
    config = make_adapter_config(source, source.lora, layers, base_name)
    shapes = {name: source.shapes[inner] for name, inner in own.items()}
    shapes |= {name: expert_adapters.peft_shape(inner, each, source.shapes[inner]) for name, (inner, each) in of_experts.items()}

    def read(name: str, slices: tuple[slice, ...] | None) -> Tensor:
        if name in own:
            return source.trained(own[name], slices)
        inner, each = of_experts[name]
        return expert_adapters.read_for_peft(source.trained, inner, each, source.shapes[inner], slices)

    beside = source.plan.adapter_files
    return replace(
        source,
        trained=read,
        shapes=shapes,
        plan=ExportPlan(
            files={"adapter_config.json": config, **{name: text for name, text in source.plan.files.items() if name in beside}},
            copy=tuple(name for name in source.plan.copy if name in beside),
            conversion=source.plan.conversion,
        ),
        strength=1.0,  # the strength is in the config's alpha
    )


def make_adapter_config(source: Source, lora: Lora, layers: set[str], base_name: str | None) -> bytes:
    """peft's adapter_config.json for adapters of these layers, of experts and of new parameters. Raises `UserError` for what peft cannot
    load."""
    fused = any(layout.ndim == 3 and len(layout.parts()) > 1 for layout in source.plan.layouts.values())
    modules, parameters = lora_adapters.split_targets(layers, fused or bool(source.experts))
    if parameters and lora.dora:
        raise UserError(
            f"--adapter-only: peft cannot load DoRA of {parameters[0].removesuffix('.weight')} beside experts that are one parameter; "
            "export the whole model"
        )
    scaled = lora.model_copy(update={"alpha": lora.alpha * source.strength})
    config = lora_adapters.peft_config(scaled, modules, [*parameters, *source.experts])
    trained_from = source.state["base"]
    config.base_model_name_or_path = base_name or trained_from["source"]
    config.revision = trained_from["revision"] if base_name in (None, trained_from["source"]) else None
    config.inference_mode = True
    for key, value in source.plan.adapter_config.items():
        setattr(config, key, value)
    config.modules_to_save = sorted(added_parameters.owning_modules(source.state["added"])) or None
    return json.dumps(config.to_dict(), indent=1, default=sorted).encode()


def check_whole_modules(added: set[str], kept: set[str]) -> None:
    """Raises `UserError` if a new parameter shares its module with a `kept` one of the base: peft saves whole modules."""
    modules = added_parameters.owning_modules(kept) | {""}
    if shared := sorted(name for name in added if name.rpartition(".")[0] in modules):
        raise UserError(
            f"--adapter-only: {shared[0]} is new, and other parameters of its module are not, which a peft adapter cannot express; "
            "remove the flag"
        )


def write(
    source: Source, entries: list[ExportedTensor], weights: str, base: Path, target: Path, card: dict[str, Any], number_type: str
) -> None:
    """Write a temporary folder and rename it to `target`. It is removed on failure, and by the next export if this one is killed."""
    conversion = source.plan.conversion
    copied = sum(path.stat().st_size for name in source.plan.copy for path in list_files(base / name))
    size = sum(entry.bytes for entry in entries) + copied + 2**20
    files.require_space(target.parent, size if conversion is None else 2 * size, "the export")
    files.remove_unfinished(target.parent, target.name)
    with files.new_folder(target) as temporary:
        folder = temporary if conversion is None else files.make_folder(temporary / UNCONVERTED)
        digests = write_folder(source, entries, weights, base, folder)
        if conversion is not None:
            digests = conversion.convert(folder, temporary, number_type)
            files.discard(folder)
        files.write_blocks(temporary / CARD, [encode_card(source.state, card, digests, target)])
        for name, digest in digests.items():  # silent disk errors
            if files.digest(temporary / name) != digest:
                raise UserError(f"{temporary / name} does not read back as it was written; the disk may be failing; the export was removed")


def write_folder(source: Source, entries: list[ExportedTensor], weights: str, base: Path, folder: Path) -> dict[str, str]:
    """Write weights, copied files and documents into `folder`; returns the digests of the weights' files."""
    digests = write_weights(source, entries, weights, folder)
    for name in source.plan.copy:
        for path in list_files(base / name):
            copy_for_export(path, base, folder / path.relative_to(base))
    for name, content in set_dtype(describe_plain_weights(source.plan.files), source.dtype).items():
        files.make_folder((folder / name).parent)
        files.write_blocks(folder / name, [content])
    return digests


def describe_plain_weights(documents: dict[str, bytes]) -> dict[str, bytes]:
    """Return the documents with a config.json that declares no quantization: the weights of every export are plain numbers."""
    if "config.json" not in documents:
        return documents
    found = json.loads(documents["config.json"])
    plain = drop_declarations(found)
    return documents if plain == found else {**documents, "config.json": json.dumps(plain, indent=2, ensure_ascii=False).encode()}


def set_dtype(documents: dict[str, bytes], dtype: torch.dtype | None) -> dict[str, bytes]:
    """Return the documents with `dtype` set in config.json: from version 5 on, transformers loads weights in the type that it names."""
    if dtype is None or "config.json" not in documents:
        return documents
    named = str(dtype).removeprefix("torch.")

    def renamed(entry: JsonValue) -> JsonValue:
        if not isinstance(entry, dict):
            return entry
        return {key: named if key in ("dtype", "torch_dtype") else renamed(value) for key, value in entry.items()}

    return {**documents, "config.json": json.dumps(renamed(json.loads(documents["config.json"])), indent=2).encode()}


def exported_entries(source: Source, base: Path) -> list[ExportedTensor]:
    """Return every tensor of the base and every new one, as they will be written. A new one has the type of most of the base's elements.
    Raises `UserError` if two of them would have one name."""
    types = {text: dtype for dtype, text in DTYPES.items()}
    changed, entries = invert_layouts(find_changed(source)), []
    for name, tensor in sorted(loading.find_tensors(base).items()):
        own = types[tensor.dtype]
        dtype = source.dtype if source.dtype and own.is_floating_point else own
        entries.append(ExportedTensor(source.plan.translate_name(name), dtype, tensor.shape, name, changed.get(name, ())))
    sizes = Counter[torch.dtype]()
    for entry in entries:
        sizes[entry.dtype] += math.prod(entry.shape) if entry.dtype.is_floating_point else 0
    usual = source.dtype or max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    new = []
    for name in source.state["added"]:
        shape = source.shapes[name]
        new.append(ExportedTensor(source.plan.translate_name(name), usual, shape, changed=TensorLayout.of(name, shape).pieces))
    added = {entry.name for entry in new}
    every = [*(entry for entry in entries if entry.name not in added), *new]
    if len({entry.name for entry in every}) < len(every) or len(added) < len(new):
        raise UserError("ExportPlan.translate_name of the recipe gives two tensors the same name; give each its own")
    return sorted(every, key=lambda entry: entry.name)


def check_accounted(source: Source, entries: list[ExportedTensor]) -> None:
    """Raises `UserError` if the export would not contain all trained values."""
    written = Counter[str]()
    for piece in (piece for entry in entries for piece in entry.changed):
        written[piece.name] += math.prod(piece.sizes)
    sizes = {name: math.prod(layout.shape) for name, layout in find_changed(source).items() if name not in source.state["buffers"]}
    sizes |= {name: math.prod(source.shapes[name]) for name in source.state["added"]}
    if lost := sorted(name for name, size in sizes.items() if written[name] != size):
        raise UserError(f"the export would lose trained tensors: {', '.join(lost[:5])}; the recipe's export plan does not keep them")


def write_weights(source: Source, entries: list[ExportedTensor], stem: str, folder: Path) -> dict[str, str]:
    """Write one STEM.safetensors, or several files with an index. Returns file name → SHA-256."""
    groups = split_into_files(entries)
    names = (
        [f"{stem}.safetensors"]
        if len(groups) == 1
        else [f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    )
    digests = {}
    for name, group in zip(names, groups, strict=True):
        blocks = (block for entry in group for block in blocks_of(source, entry))
        digests[name] = rank_shards.write_stream(folder / name, group, blocks, {}).digest
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(entry.bytes for entry in entries)},
            "weight_map": {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group},
        }
        files.write_blocks(folder / f"{stem}.safetensors.index.json", [json.dumps(index, indent=1).encode()])
    return digests


def split_into_files(entries: list[ExportedTensor]) -> list[list[ExportedTensor]]:
    groups: list[list[ExportedTensor]] = [[]]
    for entry in entries:
        if groups[-1] and sum(other.bytes for other in groups[-1]) + entry.bytes > LARGEST_FILE_BYTES:
            groups.append([])
        groups[-1].append(entry)
    return groups


def blocks_of(source: Source, entry: ExportedTensor) -> Iterator[Tensor]:
    """Yield the exported values of one tensor, in the exported type, in blocks of rows."""
    edit = source.plan.edit.get(entry.name)
    blocks = (merge_block(source, entry, rows) for rows in row_blocks(entry.shape))
    if edit is not None:
        yield edit(torch.cat(list(blocks)).float()).to(entry.dtype)
        return
    for block in blocks:
        yield block.to(entry.dtype)


def merge_block(source: Source, entry: ExportedTensor, rows: tuple[slice, ...] | None) -> Tensor:
    """These rows of a tensor: the base's values, with those of trained parameters in their places."""
    if entry.stored is None:  # a new parameter is no change of the base, even if that has values under this name
        return source.trained(entry.changed[0].name, rows)
    changed = TensorLayout(torch.Size(entry.shape), entry.changed if source.strength else ())
    pieces = list(changed.cut(rows))
    if count_elements(pieces) == math.prod(part.stop - part.start for part in rows or ()) and pieces:
        return changed.read(rows, partial(merge_parameter, source))
    block = source.stored(entry.stored, rows)
    if pieces:
        block = block.float()
    for piece in pieces:
        place_of(piece, find_bounds(entry.shape, rows)[0], block).copy_(piece.read(partial(merge_parameter, source)))
    return block


def merge_parameter(source: Source, name: str, slices: tuple[slice, ...] | None) -> Tensor:
    """Slices of a parameter: as trained, or the base's with the LoRA update merged in fp32."""
    if name in source.shapes:
        return weaken_update(source, name, slices, source.trained(name, slices))
    assert source.lora is not None and slices is not None  # it has an adapter
    if name in source.experts:
        left, right = source.experts[name].read_factors(source.trained, source.lora.rank, slices)
        scaled = source.lora.model_copy(update={"alpha": source.lora.alpha * source.strength})
        return lora_adapters.merge_update(source.base(name, slices), right, left, None, scaled)
    rows, columns = slices
    return merge_adapter_rows(source, name, rows, source.lora)[:, columns]


def weaken_update(source: Source, name: str, slices: tuple[slice, ...] | None, trained: Tensor) -> Tensor:
    """fp32: base + strength · (trained − base), for these slices of a parameter; unchanged at strength 1 (Wortsman et al. 2022,
    arXiv:2109.01903). It gives the base for a strength near 0 under DoRA and 4-bit weights, too."""
    if source.strength == 1 or not trained.is_floating_point():
        return trained
    base = source.base(name, slices).float()
    return base + source.strength * (trained.float() - base)


def row_blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...] | None]:
    """Slices that divide a tensor into blocks of rows; None stands for a whole tensor that is empty or a scalar."""
    if 0 in shape or not shape:
        yield None
        return
    height = max(1, BLOCK_BYTES // (4 * math.prod(shape[1:])))
    for start in range(0, shape[0], height):
        yield (slice(start, min(start + height, shape[0])), *(slice(0, size) for size in shape[1:]))


def merge_adapter_rows(source: Source, name: str, rows: slice, lora: Lora) -> Tensor:
    """fp32: these rows of an adapted weight with the update merged."""
    layer, interpolated = name.removesuffix(".weight"), lora.dora or bool(source.state["quantization"])
    # Interpolated: the update is more than the scaled product of A and B.
    scaled = lora if interpolated else lora.model_copy(update={"alpha": lora.alpha * source.strength})
    a = source.trained(layer + lora_adapters.DOWN, None)
    block = (rows, slice(0, a.shape[1]))
    b = source.trained(layer + lora_adapters.UP, (rows, slice(0, a.shape[0])))
    lengths = source.trained(layer + lora_adapters.LENGTHS, (rows,)) if lora.dora else None
    base = source.base(name, block)
    base = quantization.round_to_4_bits(base) if source.state["quantization"] else base
    merged = lora_adapters.merge_update(base, a, b, lengths, scaled)
    return weaken_update(source, name, block, merged) if interpolated else merged


def list_files(path: Path) -> list[Path]:
    return sorted(inner for inner in path.rglob("*") if inner.is_file()) if path.is_dir() else [path]
