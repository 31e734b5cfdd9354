"""overtone translate FILE [--to FOLDER] [--recipe NAME] [--processes N] [--sequence-length N] [--steps N]

Translate a DeepSpeed JSON or a launch file of accelerate (with its DeepSpeed or FSDP section) into a launch file and a config for
`overtone train`. Each key of the file is listed with what became of it: mapped, not needed here (and why), not there, or unknown. DeepSpeed
counts samples and steps where this config has positions and fractions; the last three options give what is needed to convert them.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.migration.key_rule_engine import KINDS, KeyLine, format_value, shorten_value
from overtone.finetune.migration.launch_file_translation import TrainingSizes, Translation, translate_file
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

if TYPE_CHECKING:
    from pydantic import JsonValue

LAUNCH, CONFIG = "launch.yaml", "config.yaml"
WIDTH = 120


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone translate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="DeepSpeed's JSON, or accelerate's YAML")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help=f"write {LAUNCH} and {CONFIG} there; without it, only print")
    parser.add_argument("--recipe", default="llm_sft", metavar="NAME", help="recipe of the printed command (default: llm_sft)")
    parser.add_argument("--processes", type=int, metavar="N", help="number of ranks over all machines (default: as in the file)")
    parser.add_argument("--sequence-length", type=int, metavar="N", help="positions of a sample, to convert sizes of batches")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps of the training, to convert the warm-up")
    arguments = parse_arguments(parser, argv)
    for name in ("processes", "sequence_length", "steps"):
        if (number := getattr(arguments, name)) is not None and number < 1:
            raise UserError(f"--{name.replace('_', '-')} {number}: a positive number is expected")
    if not arguments.file.is_file():
        raise UserError(f"{arguments.file} does not exist (looked from {Path.cwd()})")
    translation = translate_file(arguments.file, TrainingSizes(arguments.processes, arguments.sequence_length, arguments.steps))
    print_translation(arguments.file, translation)
    if arguments.to is None:
        print_line(f"\n--to FOLDER writes {LAUNCH} and {CONFIG}:\n\n{format_config(arguments.file, translation.config)}")
        return 0
    write_translation(arguments.file, translation, arguments.to)
    launch, config = arguments.to / LAUNCH, arguments.to / CONFIG
    command = overtone_command("train", "--launch", launch, "--recipe", arguments.recipe, "--config", config)
    print_line(f"\nwritten: {launch}, {config}\n  {command}")
    return 0


def print_translation(file: Path, translation: Translation) -> None:
    """Print a line for each key, by outcome."""
    print_line(f"{file}: {translation.kind}, {len(translation.lines)} keys: {translation.count()}")
    for kind in KINDS:
        lines = translation.list_lines(kind)
        if lines:
            print_line(f"\n{kind}")
        for line in lines:
            print_line(format_line(line))


def format_line(line: KeyLine) -> str:
    """Key, value and outcome, on one line or, if it is too long, on several."""
    left = f"  {line.key}: {shorten_value(format_value(line.value))}"
    whole = f"{left:<58}  {line.outcome.text}"
    return (
        whole
        if len(whole) <= WIDTH
        else f"{left}\n{textwrap.fill(line.outcome.text, WIDTH, initial_indent=' ' * 6, subsequent_indent=' ' * 6)}"
    )


def write_translation(file: Path, translation: Translation, folder: Path) -> None:
    """Write both files. Raises `UserError` rather than replacing one."""
    for path in (folder / LAUNCH, folder / CONFIG):
        if path.exists():
            raise UserError(f"{path} exists already; remove it, or give another --to FOLDER")
    files.make_folder(folder)
    files.write_text(folder / LAUNCH, f"# Translated from {file.name}.\n{yaml.safe_dump(dict(translation.launch), sort_keys=False)}")
    files.write_text(folder / CONFIG, format_config(file, translation.config))


def format_config(file: Path, config: Mapping[str, JsonValue]) -> str:
    """Return a `--config` file."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in config.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return f"# Translated from {file.name}: what it sets; the recipe's config.yaml has the rest.\n{yaml.safe_dump(nested, sort_keys=False)}"
