"""overtone export RUN_OR_CHECKPOINT --to FOLDER_OR_URL [--format NAME] [--step N] [--dtype bf16|fp32] [--quantize TYPE]
                                                    [--base FOLDER]
                                                     [--recipe PATH] [--adapter-only [--base-name NAME]]
                                                     [--strength S | --best]
                                                     [--push-to-hub NAME [--private]]
overtone export EXPORTED_FOLDER --push-to-hub NAME [--private]

Export a checkpoint as a folder that the model's own package can load: trained tensors from the checkpoint, all others from the base model,
LoRA merged in fp32. Needs no GPU, works tensor by tensor, and creates the folder atomically by one rename. RUN_OR_CHECKPOINT may be the
URL of a run's `checkpoint.copy_to`, and --to may be a URL: the export is then made in the system's temporary folder (TMPDIR) and uploaded.
The second form uploads an export as it is.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.argument_parsing import check_choice, check_run_exists, parse_arguments, refuse_dataset
from overtone.finetune.command_lines import exported_folder, overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.exporting import hub_upload
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.exporting.model_card import is_on_hub
from overtone.finetune.exporting.model_card_metadata import describe_target
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.recipe import choose_recipe, find_recipe, load_recipe, recipe_arguments
from overtone.finetune.storage import files, remote
from overtone.finetune.storage.foreign_model_formats import ADAPTER
from overtone.finetune.storage.strict_json import read_object
from overtone.finetune.terminal import announce_torch, print_line

DTYPES = ("bf16", "fp32")
"""Values of --dtype."""


def make_parser() -> argparse.ArgumentParser:
    """Return the arguments of the verb."""
    parser = argparse.ArgumentParser(
        "overtone export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "checkpoint",
        type=remote.parse_place,
        metavar="RUN_OR_CHECKPOINT",
        help="folder of a run (uses its newest valid checkpoint) or of one checkpoint (checkpoints/step-*), or the URL of a copy",
    )
    parser.add_argument("--to", type=remote.parse_place, metavar="FOLDER", help="output folder or URL; must not exist yet")
    parser.add_argument(
        "--format", help="one of the recipe's formats; for voice_clone: custom_voice (named speakers) or base (can be fine-tuned again)"
    )
    parser.add_argument("--step", type=int, help="step of the checkpoint to export (default: the newest)")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights (default: as in the base model)")
    parser.add_argument(
        "--quantize",
        metavar="TYPE",
        help="type of the numbers in a GGUF: f16 (default), bf16, or q8_0 (8 bits); llama.cpp's own llama-quantize makes all others",
    )
    parser.add_argument("--adapter-only", action="store_true", help="export only the LoRA adapter, in peft's format, without the base")
    parser.add_argument(
        "--base-name",
        metavar="NAME",
        help="with --adapter-only: the hub name of the base, for others, in place of the folder that the run was trained from",
    )
    parser.add_argument(
        "--strength",
        type=float,
        metavar="S",
        help="scale the update of the training: 0 is the base, 1 (default) the trained model, up to 2",
    )
    parser.add_argument("--best", action="store_true", help="export the checkpoint at the strength that `overtone select` chose")
    parser.add_argument("--base", type=Path, metavar="MODEL", help="folder or hub name of the base model, if it was moved after training")
    parser.add_argument("--recipe", metavar="PATH", help="folder of the recipe, if the recipe is not part of this package")
    parser.add_argument("--push-to-hub", metavar="NAME", help="upload the export to this repository of the Hugging Face Hub")
    parser.add_argument("--private", action="store_true", help="with --push-to-hub: make the repository private if it is created")
    return parser


@catch_user_errors
def main(argv: list[str]) -> int:
    """Export as the command line says; returns the exit code."""
    arguments = parse_arguments(make_parser(), argv)
    source, place = arguments.checkpoint, arguments.to
    if isinstance(source, Path):
        check_run_exists(source)
        refuse_dataset(source, "export-dataset")
    options = ExportOptions(
        form=arguments.format,
        step=arguments.step,
        dtype=arguments.dtype,
        adapter_only=arguments.adapter_only,
        base_name=arguments.base_name,
        strength=arguments.strength,
        best=arguments.best,
        base=arguments.base,
        recipe=arguments.recipe,
        push_to_hub=arguments.push_to_hub,
        private=arguments.private,
        quantize=arguments.quantize,
    )
    if isinstance(source, Path) and (source / CARD).is_file():
        print_line(f"uploaded to {upload_export(source, place, options)}")
        return 0
    if place is None:
        named = source.resolve() if isinstance(source, Path) else Path(source.name)  # `.` has no name
        raise UserError(f"--to is missing; name the new folder of the export, as in --to {exported_folder(named)}")
    card = export_model(source, place, options)
    if not options.adapter_only and (command := find_next_command(card, place, options.recipe)):
        print_line(f"next: {command}")
    return 0


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; the fields are the flags of the verb."""

    form: str | None = None
    step: int | None = None
    dtype: str | None = None
    adapter_only: bool = False
    base_name: str | None = None
    strength: float | None = None
    best: bool = False
    base: Path | None = None
    recipe: str | None = None
    push_to_hub: str | None = None
    private: bool = False
    quantize: str | None = None


def export_model(source: Path | RemoteAddress, place: Path | RemoteAddress, options: ExportOptions) -> dict[str, Any]:
    """Export a run or a checkpoint to `place`, upload it if that is wanted, and print where it is; returns the export's card.

    Raises `UserError` for what cannot be exported, before any work is done.
    """
    if isinstance(source, Path):
        check_run_exists(source)
    check_hub(options)
    check_choice("--dtype", options.dtype, DTYPES)
    if options.best:
        check_best(source, options)
    announce_torch("the recipe of the run")
    from overtone.finetune.exporting.export import export  # here, since --help and mistakes in the flags need no torch

    if options.best:
        source, options = take_selection(source, options)
    with fetch_and_place(source, options.step, place) as (checkpoint, step, target):
        name = options.push_to_hub or describe_target(place)
        check_base_name(options, checkpoint, step)
        export(
            checkpoint,
            target,
            form=options.form,
            step=step,
            dtype=options.dtype,
            moved_base=options.base,
            adapter_only=options.adapter_only,
            recipe=options.recipe,
            name=name,
            strength=1.0 if options.strength is None else options.strength,
            base_name=options.base_name,
            quantize=options.quantize,
        )
        if isinstance(place, RemoteAddress):
            remote.upload(target, place, CARD)
        print_line(f"{place} is ready")
        if options.push_to_hub is not None:
            print_line(f"uploaded to {hub_upload.push(target, options.push_to_hub, options.private)}")
        return read_json(target / CARD)


def upload_export(folder: Path, place: Path | RemoteAddress | None, options: ExportOptions) -> str:
    """Upload an exported folder to the hub; returns the URL. Raises `UserError` for options that would need another export, and for an
    adapter whose base nobody else can load."""
    name = options.push_to_hub
    if name is None:
        raise UserError(f"{folder}: an export already; give --push-to-hub OWNER/MODEL to upload it, or the folder of a run to export that")
    other = replace(options, push_to_hub=None, private=False)
    if place is not None or other != ExportOptions():
        changed = "to" if place is not None else next(key for key, value in asdict(other).items() if value != getattr(ExportOptions(), key))
        flag = {"form": "format"}.get(changed, changed).replace("_", "-")
        raise UserError(f"--{flag}: {folder} is an export already, which is uploaded as it is; remove the flag, or export the run anew")
    hub_upload.check_repository(name)
    adapter = read_object(folder / ADAPTER) if (folder / ADAPTER).is_file() else {}
    named, base = adapter.get("base_model_name_or_path"), read_object(folder / CARD).get("base")
    is_local = isinstance(base, dict) and named == base.get("source") and not base.get("revision")
    if isinstance(named, str) and (is_local or Path(named).is_absolute()):
        raise UserError(
            f"--push-to-hub {name}: {explain_local_base(named)}; export the run again with --adapter-only --base-name OWNER/MODEL"
        )
    return hub_upload.push(folder, name, options.private)


def explain_local_base(source: str) -> str:
    """Return why an adapter of this base cannot be published."""
    return f"the run was trained from the folder {source}, which nobody else can load and which would be published"


def check_base_name(options: ExportOptions, place: Path, step: int | None) -> None:
    """Raises `UserError` if an adapter would be published with a folder of this machine as the name of its base."""
    from overtone.finetune.checkpointing import checkpoint

    if options.base_name is not None and not options.adapter_only:
        raise UserError("--base-name is for --adapter-only: other exports contain the base's weights; remove it")
    if options.push_to_hub is None or not options.adapter_only or options.base_name is not None:
        return
    state = checkpoint.read_state(checkpoint.find(place, step))
    if not is_on_hub(state):
        raise UserError(
            f"--push-to-hub {options.push_to_hub} --adapter-only: {explain_local_base(state['base']['source'])}; give the base's name on "
            "the hub, as in --base-name OWNER/MODEL"
        )


def find_next_command(card: dict[str, Any], place: Path | RemoteAddress, named: str | None) -> str | None:
    """Return the command that tries an export at `place`; None for a URL, and for another format than the recipe's first. `named`:
    --recipe."""
    if isinstance(place, RemoteAddress):
        return None
    name = choose_recipe(place / CARD, card["recipe"], named)
    recipe = load_recipe(find_recipe(name))
    if card["format"] != recipe.formats[0] or recipe.inference.generate is None:
        return None
    return overtone_command("generate", "--model", place, *recipe.inference.example, *recipe_arguments(name))


@contextlib.contextmanager
def fetch_and_place(
    source: Path | RemoteAddress, step: int | None, target: Path | RemoteAddress
) -> Iterator[tuple[Path, int | None, Path]]:
    """(folder to read, step in it, folder to write): URLs are replaced by temporary folders, and a checkpoint at a URL is downloaded.

    Raises `UserError` if `target` is a URL at which there are files already.
    """
    from overtone.finetune.checkpointing import remote_copies

    if isinstance(target, RemoteAddress) and remote.list_files(target):
        raise UserError(f"--to {target} already exists; choose another name or remove it")
    with contextlib.ExitStack() as leaving:
        if isinstance(source, RemoteAddress) or isinstance(target, RemoteAddress):
            temporary = leaving.enter_context(files.temporary_folder("overtone-export"))
        if isinstance(source, RemoteAddress):
            source, step = remote_copies.download_checkpoint(source, step, temporary), None
        yield source, step, temporary / target.name if isinstance(target, RemoteAddress) else target


def check_best(source: Path | RemoteAddress, options: ExportOptions) -> None:
    """Check what stands beside --best. Raises `UserError`."""
    for name, value in (("step", options.step), ("strength", options.strength)):
        if value is not None:
            raise UserError(f"--best and --{name} {value:g}: the selection chose step and strength; give one of the two")
    if not isinstance(source, Path):
        raise UserError(f"--best: {source} is a copy, and selections are not copied; give the folder of the run")


def take_selection(run: Path | RemoteAddress, options: ExportOptions) -> tuple[Path, ExportOptions]:
    """Return the checkpoint and the strength that `overtone select` chose, whose reason is printed. Raises `UserError` without a
    selection."""
    from overtone.finetune.exporting.selection_record import read_selection

    assert isinstance(run, Path)  # `check_best`
    checkpoint, choice = read_selection(run)
    print_line(f"step {choice.step} at strength {choice.strength:g}, as selected: {choice.reason}")
    return checkpoint, replace(options, strength=choice.strength)


def check_hub(options: ExportOptions) -> None:
    """Check the hub flags before the export. Raises `UserError`."""
    if options.push_to_hub is not None:
        hub_upload.check_repository(options.push_to_hub)
    elif options.private:
        raise UserError("--private needs --push-to-hub NAME; add it, or remove --private")
