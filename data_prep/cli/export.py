"""Export a voice dataset to the layouts of other programs.

  overtone export-dataset data/me --as ljspeech --to me_ljspeech
  overtone export-dataset official.jsonl --root /data/wavs --as voice --to data/me

ljspeech     wavs/ID.wav and metadata.csv: id|text|text, or id|speaker|text with several speakers (as Piper reads it)
audiofolder  train/ and validation/ with metadata.jsonl, for datasets.load_dataset("audiofolder", …)
voice        the layout of `overtone voice`: all clips copied into one folder, from anywhere under --root
qwen         train.jsonl for the official Qwen3-TTS scripts: audio, text, ref_audio, language, and audio_codes if present

Accepts datasets of `overtone voice` and JSONL files for the official script. The new folder appears complete or not at all.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.selection import DEFAULT_RECIPE
from overtone.data_prep.cli.check import CheckResult, check_dataset
from overtone.data_prep.dataset.clip_encoding import STORE
from overtone.data_prep.dataset.codec_metadata import CodesSummary
from overtone.data_prep.dataset.duration_accounting import format_clock
from overtone.data_prep.dataset.export_formats import FORMATS, ExportItem, ExportResult
from overtone.data_prep.dataset.manifest_line_reader import DATASET, ROOT, find_manifests, read_manifest_lines
from overtone.data_prep.dataset.row_checks import RowFacts
from overtone.data_prep.manifest import SUMMARY
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.storage import files
from overtone.finetune.storage.referenced_files import find_file
from overtone.finetune.terminal import print_diagnostic, print_line

UNFIT = {"not_json", "bad_row", "outside", "no_file", "unreadable", "empty", "nan", "silent", "truncated"}
"""Kinds of problems that prevent an export."""
UNFIT_FOR_TRAINING = {"ref_audio", "codes", "codes_missing"}
SHOWN = 3
BYTES_PER_SECOND = 2 * MASTER_RATE


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        "overtone export-dataset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("dataset", type=Path, help=DATASET)
    options.add_argument("--as", dest="layout", choices=list(FORMATS), required=True, help="output layout, see above")
    options.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="output folder, must not exist")
    options.add_argument("--speaker", metavar="NAME", help="export only the clips of this speaker")
    options.add_argument("--root", type=Path, help=ROOT)
    return options


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb."""
    options = parse_arguments(parser(), argv)
    if options.to.exists():
        raise UserError(f"--to {options.to} exists already; remove it, or choose another folder")
    manifests = find_manifests(options.dataset, "export")
    checked = check_dataset(manifests, options.root)
    _require_fit(checked, options)
    if not checked.rows:
        raise UserError(f"{options.dataset} has no rows; create some with: {overtone_command('voice', 'RECORDINGS', '--out', 'FOLDER')}")
    items = _collect_items(manifests, checked.rows, options)
    if options.layout == "qwen" and checked.recipe != DEFAULT_RECIPE:
        items = [replace(item, codes=None) for item in items]
        print_diagnostic("note: the codes are dropped, because they are of another codec than that of the official scripts")
    files.require_space(options.to, round(BYTES_PER_SECOND * sum(item.seconds for item in items)), f"the export of {options.dataset}")
    exported = write_export(items, options.layout, options.to, checked.summary)
    print_line(format_result(exported, options.to))
    return 0


def _require_fit(checked: CheckResult, options: argparse.Namespace) -> None:
    unfit = UNFIT | (UNFIT_FOR_TRAINING if options.layout in ("qwen", "voice") else set())
    wrong = [problem for problem in checked.problems if problem.kind in unfit]
    if wrong:
        command = overtone_command("check-dataset", options.dataset, *(["--root", options.root] if options.root else []))
        raise UserError(
            f"{options.dataset} has {len(wrong)} problems, first at {wrong[0].place}: {wrong[0].detail}; list all with: {command}"
        )


def _collect_items(manifests: list[Path], facts: list[RowFacts], options: argparse.Namespace) -> list[ExportItem]:
    """Return the clips to export. All rows passed the check; `facts` has one entry per row, in the same order."""
    items: list[ExportItem] = []
    lines = (line for manifest in manifests for line in read_manifest_lines(manifest))
    for line, known in zip(lines, facts, strict=True):
        assert line.row is not None and known.sound is not None, "the dataset was checked"
        if options.speaker and known.speaker != options.speaker:
            continue
        root = (options.root or line.manifest.parent).resolve()
        clip = find_file(root, line.row.audio)
        reference = find_file(root, line.row.ref_audio) if line.row.ref_audio else None
        identity = line.row.id or clip.relative_to(root).with_suffix("").as_posix()
        name = re.sub(r"[^\w.-]+", "_", identity).lstrip("._") or "_"  # a valid file name, and a valid field of metadata.csv
        codes = (
            None if line.row.audio_codes is None else np.array(line.row.audio_codes, np.uint16)
        )  # nested lists take ten times the memory
        row = line.row.model_copy(update={"audio_codes": None})
        items.append(
            ExportItem(
                name=name,
                place=line.place,
                row=row,
                codes=codes,
                clip=clip,
                reference=reference,
                validates=known.validates,
                seconds=known.sound.seconds,
            )
        )
    if not items:
        names = sorted({known.speaker for known in facts if known.speaker})
        raise UserError(
            f"{options.dataset}: no clip of speaker {options.speaker!r}; speakers in the dataset: {', '.join(names) or 'none named'}"
        )
    first: dict[str, ExportItem] = {}
    for item in items:
        if (other := first.setdefault(item.name, item)) is not item:
            raise UserError(f"{item.place}: its file name {item.name!r} is also that of {other.place}; give each row a unique id")
    return items


def write_export(items: list[ExportItem], layout: str, to: Path, summary: CodesSummary) -> ExportResult:
    """Write the export to a temporary folder next to the target, then rename it. `summary`: the codec of the items' codes."""
    files.make_folder(to.parent)
    files.remove_unfinished(to.parent, to.name)
    with files.new_folder(to) as temporary:
        exported = FORMATS[layout](items, temporary)
        if not exported.items:
            raise UserError(f"nothing to export; {exported.skipped[0]}")
        if layout == "voice" and summary.entries and any(item.codes is not None for item in exported.items):
            files.write_json(temporary / STORE / SUMMARY, summary.entries)
    return exported


def format_result(exported: ExportResult, to: Path) -> str:
    """Return the summary for the terminal."""
    lines = [f"{to}: {format_count(len(exported.items), 'clip')}, {format_clock(sum(item.seconds for item in exported.items))}"]
    if exported.skipped:
        lines += [f"{len(exported.skipped)} skipped:", *(f"    {one}" for one in exported.skipped[:SHOWN])]
    if len(exported.skipped) > SHOWN:
        lines.append(f"    … and {len(exported.skipped) - SHOWN} more")
    return "\n".join([*lines, exported.how_to(to)])
