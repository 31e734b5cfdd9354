"""python -m finetune export RUN_OR_CHECKPOINT --to FOLDER_OR_URL [--format NAME] [--step N] [--dtype bf16|fp32] [--base FOLDER]
                                                     [--recipe PATH] [--adapter-only] [--push-to-hub NAME [--private]]

Turns a checkpoint into the folder that the model's own package loads: trained tensors from the checkpoint, the rest from the base, LoRA
merged in fp32. Works without a GPU and without the processes that trained, one tensor at a time, and appears by one rename. Of a run with
`checkpoint.copy_to` the URL will do, and so it will for --to: the work is done in the system's temporary folder (TMPDIR), and uploaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import contextlib
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from finetune import __version__, files, publish, remote
from finetune.config import Lora
from finetune.errors import UserError, exit_code
from finetune.layers import read_layer
from finetune.model_gate import copy_for_export
from finetune.recipe import ExportPlan, Recipe, find_recipe, load_recipe, recipe_named_in

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from finetune.models import Reader
    from finetune.shards import Entry

CARD = "overtone.json"
LARGEST_FILE_BYTES = 5 * 10**9
"""Weights beyond this are split, as the hub's tools do."""
BLOCK_BYTES = 32 * 2**20
"""Tensors are read, merged and written by blocks of rows of about this size in fp32. Merging holds five of them."""


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("finetune export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkpoint",
        type=remote.place,
        metavar="RUN_OR_CHECKPOINT",
        help="a run's folder (its newest good checkpoint) or one checkpoints/step-* folder, or the URL of a copy",
    )
    parser.add_argument(
        "--to", type=remote.place, required=True, metavar="FOLDER", help="where the model will stand, also a URL; must not exist yet"
    )
    parser.add_argument(
        "--format", help="one of the recipe's formats; for voice_clone custom_voice (named speakers) or base (can be trained again)"
    )
    parser.add_argument("--step", type=int, help="a step of the run instead of its newest")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), help="type of the weights; by default each tensor keeps the base's")
    parser.add_argument("--adapter-only", action="store_true", help="of a LoRA run, the adapter alone, in peft's layout, without the base")
    parser.add_argument("--base", type=Path, metavar="FOLDER", help="where the base lies now, if it has moved since the training")
    parser.add_argument("--recipe", metavar="PATH", help="folder of the recipe, for a run whose recipe does not come with the package")
    parser.add_argument("--push-to-hub", metavar="NAME", help="then upload it to this repository of the Hugging Face hub")
    parser.add_argument("--private", action="store_true", help="with --push-to-hub: a repository that is made is private")
    arguments = parser.parse_args(argv)
    check_hub(arguments)
    with brought_here(arguments.checkpoint, arguments.step, arguments.to) as (checkpoint, step, target):
        export(checkpoint, target, arguments.format, step, arguments.dtype, arguments.base, arguments.adapter_only, arguments.recipe)
        if remote.is_url(arguments.to):
            remote.upload(target, arguments.to, CARD)
        print(f"{arguments.to} is ready")
        if arguments.push_to_hub is not None:
            print(f"uploaded to {publish.push(target, arguments.push_to_hub, arguments.private)}")
    return 0


@contextlib.contextmanager
def brought_here(source: Path | str, step: int | None, target: Path | str) -> Iterator[tuple[Path, int | None, Path]]:
    """A folder to read, the step in it and a folder to write, for what may be elsewhere. Raises `UserError` if `target` is taken there."""
    from finetune import copies

    if isinstance(target, str) and remote.find(target):
        raise UserError(f"--to {target} exists already; choose another name or remove that one")
    with contextlib.ExitStack() as leaving:
        if isinstance(source, str) or isinstance(target, str):
            temporary = files.fresh_folder(Path(tempfile.gettempdir()), "export")
            leaving.callback(files.discard, temporary)
        if isinstance(source, str):
            source, step = copies.fetch(source, step, temporary), None
        yield source, step, temporary / remote.name_of(target) if isinstance(target, str) else target


def check_hub(arguments: argparse.Namespace) -> None:
    """An upload that cannot work is refused before the export is made."""
    if arguments.push_to_hub is not None:
        publish.check(arguments.push_to_hub)
    elif arguments.private:
        raise UserError("--private: only with --push-to-hub NAME; add that, or drop the flag")


@dataclass(frozen=True)
class Source:
    """Where an exported model's tensors come from."""

    state: dict[str, Any]
    trained: Reader
    shapes: dict[str, tuple[int, ...]]
    """Of everything in the checkpoint."""
    base: Reader
    plan: ExportPlan
    dtype: torch.dtype | None

    @property
    def lora(self) -> Lora | None:
        return None if self.state["lora"] is None else Lora.model_validate(self.state["lora"])


def export(
    place: Path,
    target: Path,
    form: str | None = None,
    step: int | None = None,
    dtype: str | None = None,
    moved_base: Path | None = None,
    adapter_only: bool = False,
    recipe: str | None = None,
) -> Path:
    """Export a checkpoint to `target`; raises `UserError` before any work if something does not fit. Nothing is left behind on failure.

    `recipe`: its name or folder, for a run of a recipe that does not come with the package; otherwise the checkpoint's own name counts.
    """
    from finetune import checkpoint, models, shards

    if target.exists():
        raise UserError(f"--to {target} exists already; choose another folder or remove that one")
    chosen = checkpoint.find(place, step)
    state = checkpoint.read_state(chosen)
    maker = load_recipe(find_recipe(recipe_named_in(chosen / "state.json", state.get("recipe"), recipe)))
    form = choose_format(maker, form)
    base = find_base(state, maker.base_folders, moved_base)
    with shards.open_shards(chosen) as (trained, shapes), models.open_base(base) as read_base:
        check_pieces(chosen, state, shapes, base)
        buffers = {name: trained(name, None) for name in state["buffers"]}
        plan = introduced(maker.export(base, state["recipe_state"], buffers, form), chosen, state)
        source = Source(state, trained, shapes, read_base, plan, as_dtype(dtype))
        # Only the end of the path: where it lies on this machine is nobody's business, should the folder be published.
        card = {"recipe": state["recipe"], "format": form, "step": state["step"], "checkpoint": "/".join(chosen.parts[-3:])}
        if adapter_only:
            source = adapter_alone(source, form)
            write(source, adapter_entries(source), "adapter_model", base, target, card)
        else:
            entries = [entry for entry in exported_entries(source, base) if plan.keep(entry.name)]
            check_accounted(source, {entry.name for entry in entries})
            write(source, entries, "model", base, target, card)
    return target


def check_pieces(chosen: Path, state: dict[str, Any], shapes: dict[str, tuple[int, ...]], base: Path) -> None:
    """Raises `UserError` for a checkpoint whose files contradict each other or the base: what is exported from one would be neither."""
    from finetune import models

    if missing := sorted(set(state["buffers"]) - set(shapes)):
        raise UserError(f"{chosen}: state.json names {', '.join(missing[:4])}, which no file of it holds; choose another checkpoint")
    whole = models.tensor_shapes(base)
    other = [f"{name} is {shape}, in the base {whole[name]}" for name, shape in shapes.items() if shape != whole.get(name, shape)]
    if other:
        raise UserError(f"{chosen} holds other shapes than its base ({'; '.join(other[:4])}); choose another checkpoint")


def introduced(plan: ExportPlan, chosen: Path, state: dict[str, Any]) -> ExportPlan:
    """With the README.md that the recipe writes from what the checkpoint knows."""
    if plan.readme is None:
        return plan
    settings = read_layer(chosen / "config.yaml").values
    if strange := [name for name in ("model", "data", "train", "options") if not isinstance(settings.get(name), dict)]:
        raise UserError(f"{chosen / 'config.yaml'} has no section {', '.join(strange)}; choose another checkpoint")
    text = plan.readme(state, (chosen / "config.yaml").read_text(encoding="utf-8"))
    return replace(plan, files={**plan.files, "README.md": text.encode()})


def choose_format(recipe: Recipe, form: str | None) -> str:
    if form is not None and form not in recipe.formats:
        raise UserError(f"--format {form}: the recipe offers {', '.join(recipe.formats)}")
    return form or recipe.formats[0]


def find_base(state: dict[str, Any], inside: tuple[str, ...], moved: Path | None = None) -> Path:
    """The base that the checkpoint was trained on, where it was or where it has `moved`, and no other. `inside`: `Recipe.base_folders`."""
    from finetune import checkpoint, models

    known = state["base"]
    try:
        base = models.resolve_source(str(moved) if moved else known["source"], known["revision"])
    except UserError as error:
        raise UserError(f"the base that was trained on: {error}; if it has moved, say where it is with --base FOLDER") from None
    found = models.file_digests(base, inside)
    changed = checkpoint.changed_files(known["files"], found)
    if changed or (digest := models.content_digest(found)) != known["digest"]:
        named = ", ".join(changed) or f"digest {digest[:12]}…, expected {known['digest'][:12]}…"
        raise UserError(
            f"the base at {base} is not the one that was trained on ({named}); bring that one back, or say where it is with --base FOLDER"
        )
    if known["files"] is None:
        print(
            "warning: the checkpoint was saved by an earlier version, which knew the base by its weights and config.json alone: whether "
            f"tokenizer and chat template in {base} are those that were trained on cannot be checked",
            file=sys.stderr,
            flush=True,
        )
    return base


def as_dtype(name: str | None) -> torch.dtype | None:
    import torch

    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name] if name else None


def adapter_alone(source: Source, form: str) -> Source:
    """The adapters under the names that peft gives them, and its config. Raises `UserError` if there is more to the model than that."""
    from finetune.adapters import is_adapter, layer_of, peft_config, peft_name

    if source.lora is None:
        raise UserError("--adapter-only: this run trained the weights themselves and has no adapter; drop the flag")
    if source.plan.edit:
        raise UserError(
            f"--adapter-only: the format {form} also changes {', '.join(source.plan.edit)}, which an adapter does not hold; "
            "drop the flag, or choose another --format"
        )
    adapters = [name for name in source.shapes if is_adapter(name) and not name.startswith("optimizer.")]
    own = {peft_name(name): name for name in adapters}
    config = peft_config(source.lora, [*{layer_of(name) for name in adapters}])
    config.base_model_name_or_path, config.revision = source.state["base"]["source"], source.state["base"]["revision"]
    config.inference_mode = True
    shapes = {name: source.shapes[inner] for name, inner in own.items()}
    document = json.dumps(config.to_dict(), indent=1, default=sorted).encode()
    return replace(
        source,
        trained=lambda name, slices: source.trained(own[name], slices),
        shapes=shapes,
        plan=ExportPlan(files={"adapter_config.json": document}),
    )


def adapter_entries(source: Source) -> list[Entry]:
    import torch

    from finetune.shards import Entry

    return [Entry(name, source.dtype or torch.float32, shape) for name, shape in sorted(source.shapes.items())]


def write(source: Source, entries: list[Entry], weights: str, base: Path, target: Path, card: dict[str, Any]) -> None:
    """Fill a temporary folder and commit it by one rename; on any failure it is removed, or by the next try if this one is killed."""
    copied = sum(path.stat().st_size for name in source.plan.copy for path in every_file(base / name))
    files.require_space(target.parent, sum(entry.bytes for entry in entries) + copied + 2**20, "the export")
    files.sweep(target.parent, target.name)
    temporary = files.fresh_folder(target.parent, target.name)
    try:
        digests = write_weights(source, entries, weights, temporary)
        for name in source.plan.copy:
            for path in every_file(base / name):
                copy_for_export(path, base, temporary / path.relative_to(base))
        documents = {**retyped(source.plan.files, source.dtype), CARD: describe(source.state, card, digests)}
        for name, content in documents.items():
            files.make_folder((temporary / name).parent)
            files.write_blocks(temporary / name, [content])
        check_written(temporary, digests)
        files.commit_folder(temporary, target)
    except BaseException:
        files.discard(temporary)
        raise


def retyped(documents: dict[str, bytes], dtype: torch.dtype | None) -> dict[str, bytes]:
    """With config.json naming the type that was asked for: from version 5 on, transformers loads weights in the type named there."""
    if dtype is None or "config.json" not in documents:
        return documents
    named = str(dtype).removeprefix("torch.")

    def renamed(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return {key: named if key in ("dtype", "torch_dtype") else renamed(value) for key, value in entry.items()}

    return {**documents, "config.json": json.dumps(renamed(json.loads(documents["config.json"])), indent=2).encode()}


def exported_entries(source: Source, base: Path) -> list[Entry]:
    """Name, type and shape of every tensor of the base, as it will be written."""
    from safetensors import safe_open

    from finetune.models import tensor_files
    from finetune.shards import DTYPES, Entry

    types = {text: dtype for dtype, text in DTYPES.items()}
    entries = []
    for name, path in sorted(tensor_files(base).items()):
        with safe_open(path, framework="pt") as file:
            part = file.get_slice(name)
            own = types[part.get_dtype()]
            entries.append(Entry(name, source.dtype if source.dtype and own.is_floating_point else own, tuple(part.get_shape())))
    return entries


def check_accounted(source: Source, exported: set[str]) -> None:
    """Everything that was trained must reach the export, or the export is refused."""
    from finetune.adapters import is_adapter, layer_of
    from finetune.models import base_name

    owners = {
        name: layer_of(name) + ".weight" if is_adapter(name) else base_name(name)
        for name in source.shapes
        if not name.startswith("optimizer.")
    }
    lost = sorted(name for name, owner in owners.items() if owner not in exported and name not in source.state["buffers"])
    if lost:
        raise UserError(f"the export would lose trained tensors: {', '.join(lost[:5])}; this recipe's plan does not keep them")


def write_weights(source: Source, entries: list[Entry], stem: str, folder: Path) -> dict[str, str]:
    """One STEM.safetensors, or several with an index. Returns the digest of each file."""
    from finetune import shards

    groups = split(entries)
    names = (
        [f"{stem}.safetensors"]
        if len(groups) == 1
        else [f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    )
    digests = {}
    for name, group in zip(names, groups, strict=True):
        blocks = (block for entry in group for block in blocks_of(source, entry))
        digests[name] = shards.write_stream(folder / name, group, blocks, {}).digest
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(entry.bytes for entry in entries)},
            "weight_map": {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group},
        }
        files.write_blocks(folder / f"{stem}.safetensors.index.json", [json.dumps(index, indent=1).encode()])
    return digests


def split(entries: list[Entry]) -> list[list[Entry]]:
    groups: list[list[Entry]] = [[]]
    for entry in entries:
        if groups[-1] and sum(other.bytes for other in groups[-1]) + entry.bytes > LARGEST_FILE_BYTES:
            groups.append([])
        groups[-1].append(entry)
    return groups


def blocks_of(source: Source, entry: Entry) -> Iterator[Tensor]:
    """The final values of one tensor, in its final type, by blocks of rows."""
    edit = source.plan.edit.get(entry.name)
    if edit is not None:
        import torch

        whole = torch.cat(list(merged_rows(source, entry)))
        yield edit(whole.float()).to(entry.dtype)
        return
    for block in merged_rows(source, entry):
        yield block.to(entry.dtype)


def merged_rows(source: Source, entry: Entry) -> Iterator[Tensor]:
    """Trained values where there are some; the base's plus the LoRA update, in fp32, where an adapter was trained; else the base's."""
    from finetune import adapters

    layer = entry.name.removesuffix(".weight")
    if entry.name in source.shapes:
        yield from (source.trained(entry.name, rows) for rows in row_blocks(entry.shape))
    elif source.lora is None or layer + adapters.DOWN not in source.shapes:
        yield from (source.base(entry.name, rows) for rows in row_blocks(entry.shape))
    else:
        yield from adapted_rows(source, entry, layer, source.lora)


def row_blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...] | None]:
    """Slices that cut a tensor into blocks of rows; None is all of one that has no rows."""
    if 0 in shape or not shape:
        yield None
        return
    height = max(1, BLOCK_BYTES // (4 * math.prod(shape[1:])))
    for start in range(0, shape[0], height):
        yield (slice(start, min(start + height, shape[0])), *(slice(0, size) for size in shape[1:]))


def adapted_rows(source: Source, entry: Entry, layer: str, lora: Lora) -> Iterator[Tensor]:
    from finetune import adapters, quantized

    a = source.trained(layer + adapters.DOWN, None)
    for block in row_blocks(entry.shape):
        assert block is not None  # an adapted layer has rows
        b = source.trained(layer + adapters.UP, (block[0], slice(0, a.shape[0])))
        lengths = source.trained(layer + adapters.LENGTHS, (block[0],)) if lora.dora else None
        base = source.base(entry.name, block)
        base = quantized.rounded(base) if source.state["quantization"] else base
        yield adapters.merged(base, a, b, lengths, lora)


def every_file(path: Path) -> list[Path]:
    return sorted(inner for inner in path.rglob("*") if inner.is_file()) if path.is_dir() else [path]


def describe(state: dict[str, Any], card: dict[str, Any], digests: dict[str, str]) -> bytes:
    """What made this model, for people and for `generate`."""
    facts = {**card, "overtone": __version__, "base": state["base"], "data": state["data"], "lora": state["lora"], "weights": digests}
    return json.dumps(facts, indent=1).encode()


def check_written(folder: Path, digests: dict[str, str]) -> None:
    """Read the weights back: a disk that lied is found here and not by the listener."""
    for name, digest in digests.items():
        if files.digest(folder / name) != digest:
            raise UserError(f"{folder / name} does not read back as it was written; the disk may be failing, nothing was kept")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
