"""Turn labelled images into a dataset for fine-tuning a classifier.

  overtone images photos/ --out data/photos
  overtone images photos.jsonl --out data/photos
  overtone images ethz/food101 --out data/food
  overtone train --recipe image_classification --data.train data/photos/train.jsonl --data.val data/photos/val.jsonl

A source is a folder with a subfolder of images for each label (also below train, val and test), a JSONL file with `image` and `label`, a
Parquet file, a folder that `datasets` saved, or the name of a dataset on the hub. Every image is decoded: broken ones, duplicates, and
images that appear under two labels are rejected and listed in rejects.jsonl. The others are copied unchanged. An existing dataset is
updated, and images that were examined before are not decoded again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from overtone.data_prep.images import image_dataset_writer, image_report
from overtone.data_prep.images.image_dataset_writer import MADE_BY, REPORT, ImageSummary
from overtone.data_prep.images.image_examination import ExaminedImage, examine_images
from overtone.data_prep.images.image_selection import select_images
from overtone.data_prep.images.image_sources import find_images
from overtone.data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.terminal import print_line

REPORTED = 1000
"""Images between two lines of progress."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("source", help="folder, JSONL file, Parquet file, or hub name of a dataset (owner/name)")
    options.add_argument(
        "--out", type=Path, required=True, help=f"output folder for images/, {TRAIN}, {VAL}, {REJECTS}, {SUMMARY}, {REPORT}"
    )
    options.add_argument(
        "--val-share",
        type=float,
        default=0.1,
        help="validation share of each label, 0 to 1, unless the source has a validation split (default %(default)s)",
    )
    options.add_argument("--config", action="append", default=[], metavar="NAME", help="configuration of a hub dataset that has several")
    options.add_argument(
        "--split", action="append", default=[], metavar="NAME", help="split of a hub dataset to use instead of its train and validation"
    )
    return options


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb. Returns 0 if there are images to train on."""
    options = parse_arguments(parser(), argv)
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: expected a share from 0 up to but not including 1")
    _check_target(options.out, options.source)
    descriptor = files.lock_folder(options.out)
    try:
        image_dataset_writer.remove_leftovers(options.out)
        settings = {"source": Path(options.source).name, "val_share": options.val_share, "configs": options.config, "splits": options.split}
        files.write_json(options.out / SUMMARY, {"made_by": MADE_BY})  # so that a killed run can be repeated
        examined: list[ExaminedImage] = []
        for image in examine_images(find_images(options.source, options.config, options.split), options.out):
            examined.append(image)
            if len(examined) % REPORTED == 0:
                print_line(f"{len(examined):,} images examined")
        dataset = select_images(examined, options.val_share)
        summary = image_dataset_writer.make_summary(dataset, settings)
        files.write_text(options.out / REPORT, image_report.render_report(dataset, summary, options.out))
        image_dataset_writer.write_dataset(dataset, options.out, summary)
    finally:
        os.close(descriptor)
    print_line(format_summary(summary, options.out))
    return 0


def _check_target(out: Path, source: str) -> None:
    """Refuse an output folder that this verb did not create, that contains the source, or that is inside it."""
    target, read = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if Path(source).exists() and read.is_relative_to(target):
        raise UserError(f"--out {out} would overwrite the source {source}; choose another folder")
    if Path(source).is_dir() and target.is_relative_to(read):
        raise UserError(f"--out {out} is inside the source {source}, so the next run would read this output; choose a folder outside it")
    if os.path.lexists(target) and not _is_own_output(target):
        raise UserError(f"--out {out} exists and was not created by {MADE_BY}; choose another folder or remove it")


def _is_own_output(out: Path) -> bool:
    """Return whether the folder was created by this verb, or is empty except for a lock and what a killed run has not finished."""
    try:
        if all(path.name == files.OWNER or files.TEMPORARY in path.name for path in out.iterdir()):
            return True
        return bool(strict_json.loads_object(input_files.read_bytes(out / SUMMARY))["made_by"] == MADE_BY)
    except (OSError, KeyError, UserError):
        return False


def format_summary(summary: ImageSummary, out: Path) -> str:
    """Return the summary for the terminal: what was found, what was rejected and why, and the next command."""
    lines = [
        f"{out}: {summary.train:,} training and {summary.val:,} validation images of {summary.found:,}; {len(summary.labels):,} labels"
    ]
    lines += [f"  rejected  {reason}: {count:,}" for reason, count in summary.rejected.items()]
    lines += [f"  changed   {change}: {count:,} (the files are as they were)" for change, count in summary.changes.items()]
    for group in summary.same_image_under_several_labels[:5]:
        lines.append("  conflict  " + "; ".join(f"{image['source']} ({image['label']})" for image in group))
    if without := summary.labels_without_validation:
        lines.append(f"  warning   no validation image for {len(without):,} labels with one image: {', '.join(without[:5])}")
    validation = ["--data.val", out / VAL] if summary.val else []
    command = overtone_command("train", "--recipe", "image_classification", "--data.train", out / TRAIN, *validation)
    return "\n".join([*lines, f"  report    {out / REPORT}", f"next: {command}"])
