"""Check whether a voice dataset can be used for training.

  overtone check-dataset data/me
  overtone check-dataset official.jsonl --root /data/wavs

Accepts datasets of `overtone voice` and JSONL files for the official Qwen3-TTS script. Validates every line and decodes every clip
(an hour of audio takes about one second on one core). Changes no file. Exit code 0 without problems, 1 with problems.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio_codecs.interface import Codec, CodeFormat, read_code_format
from overtone.data_prep.audio_codecs.selection import CODECS, DEFAULT_MODEL, RECIPES, find_base_model, open_codec
from overtone.data_prep.dataset import row_checks
from overtone.data_prep.dataset.clip_audio_checks import AudioInfo, inspect_clips
from overtone.data_prep.dataset.clip_encoding import STORE
from overtone.data_prep.dataset.codec_metadata import CodesSummary, has_same_shape, read_codes_summary
from overtone.data_prep.dataset.duration_accounting import format_clock
from overtone.data_prep.dataset.manifest_line_reader import DATASET, ROOT, ManifestLine, find_manifests, read_manifest_lines
from overtone.data_prep.dataset.row_checks import NOTES, PROBLEMS, Problem, RowFacts
from overtone.data_prep.manifest import SUMMARY, TRAIN, VAL, ManifestRow
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.storage.referenced_files import AmbiguousNameError, find_file, is_renamed
from overtone.finetune.terminal import print_line

SHOWN = 3
"""Locations printed per kind of problem."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        "overtone check-dataset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("dataset", type=Path, help=DATASET)
    options.add_argument(
        "--model", help="also check that the codes come from the codec of this model: a folder, or a name on the model hub, as for codes"
    )
    options.add_argument("--root", type=Path, help=ROOT)
    return options


@dataclass(frozen=True)
class CheckResult:
    """Result of checking a dataset."""

    rows: list[RowFacts]
    """Rows that could be parsed."""
    lines: int
    problems: list[Problem]
    """Problems and notes; their kinds are keys of `PROBLEMS` or `NOTES`."""
    summary: CodesSummary
    """The codec of the codes, as stored."""
    sample_rate: int
    """Sample rate of the codec."""
    recipe: str
    """The recipe that trains on the codes."""

    @property
    def wrong(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.kind in PROBLEMS]


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb. Returns 1 if there is a problem."""
    options = parse_arguments(parser(), argv)
    codec = open_codec(options.model) if options.model else None
    checked = check_dataset(find_manifests(options.dataset, "check"), options.root, codec)
    if not checked.lines:
        raise UserError(f"{options.dataset} has no rows; create some with: {overtone_command('voice', 'RECORDINGS', '--out', 'FOLDER')}")
    notes = {kind: (noun, rest.format(sample_rate=checked.sample_rate)) for kind, (noun, rest) in NOTES.items()}
    problems = [*_format_problems(checked.problems, PROBLEMS, ""), *_format_problems(checked.problems, notes, "note: ")]
    print_line("\n".join([*problems, *_format_totals(checked.rows)]))
    if checked.wrong:
        places = len({problem.place for problem in checked.wrong})
        print_line(
            f"{format_count(len(checked.wrong), 'problem')} in {places:,} of {format_count(checked.lines, 'line')}; "
            "correct or remove these lines, then check again"
        )
        return 1
    print_line(_format_next_command(options, checked))
    return 0


def check_dataset(manifests: list[Path], root: Path | None = None, codec: Codec | None = None) -> CheckResult:
    """Check every line of the manifests, and all lines together.

    `root`: folder that paths are relative to; None: the folder of each file. `codec`: the codec that the codes should come from; None:
    any with the format that `overtone codes` stored.
    The files are read twice, so that memory holds no codes.
    """
    stored = read_codes_summary(manifests[0].parent)
    recipe = codec.recipe if codec else stored.recipe
    codes = read_code_format(codec) if codec and not _is_of_other_shape(stored, codec) else stored.code_format
    inspected = inspect_clips(path for line in _read_lines(manifests) for path in _resolve_clips(line, root) if path)
    problems: list[Problem] = []
    rows: list[RowFacts] = []
    lines = 0
    for line in _read_lines(manifests):
        lines += 1
        if line.row is None:
            problems.append(Problem(line.kind, line.place, line.detail))
            continue
        sounds = [inspected[path] if path else None for path in _resolve_clips(line, root)]
        problems += _check_row(line, line.row, sounds, root or line.manifest.parent, codes, RECIPES.get(recipe, frozenset()))
        rows.append(row_checks.collect_facts(line, line.row, sounds[0]))
    problems += row_checks.check_across_rows(rows)
    problems += _check_codec(manifests[0].parent, stored, codec) if codec else _note_assumed_codec(stored, problems)
    return CheckResult(rows=rows, lines=lines, problems=problems, summary=stored, sample_rate=codes.sample_rate, recipe=recipe)


def _read_lines(manifests: list[Path]) -> Iterator[ManifestLine]:
    return (line for manifest in manifests for line in read_manifest_lines(manifest))


def _resolve_clips(line: ManifestLine, root: Path | None) -> list[Path | None]:
    """Return the paths of the clip and, if the row has one, the reference clip; None for a path outside `root`."""
    found: list[Path | None] = []
    for name in [line.row.audio, *filter(None, [line.row.ref_audio])] if line.row else []:
        try:
            found.append(find_file(root or line.manifest.parent, name))
        except UserError:
            found.append(None)
    return found


def _check_path(place: str, root: Path, name: str) -> Iterator[Problem]:
    try:
        path = find_file(root, name)
    except AmbiguousNameError as error:
        yield Problem("ambiguous", place, str(error))
    except UserError:
        yield Problem("outside", place, f"{name} is not under {root}: copy it there, or use --root FOLDER")
    else:
        if is_renamed(root, name, path):
            yield Problem("renamed", place, f"{name}: {path.name}")


def _check_row(
    line: ManifestLine,
    row: ManifestRow,
    sounds: list[AudioInfo | AudioError | None],
    root: Path,
    codes: CodeFormat,
    languages: Collection[str],
) -> Iterator[Problem]:
    """Yield the problems of one row. `sounds`: in the order of `_resolve_clips`."""
    yield from row_checks.check_fields(line, row, languages)
    for _, name in zip(sounds, (row.audio, row.ref_audio), strict=False):
        yield from _check_path(line.place, root, str(name))
    clip, reference = [*sounds, None][:2]
    if clip is not None:
        yield from row_checks.check_clip(line, row, clip, codes)
    if reference is not None:
        yield from row_checks.check_reference(line, row, reference)


def _is_of_other_shape(stored: CodesSummary, codec: Codec) -> bool:
    """Return whether the stored codec of the dataset has another number of codes in a frame, or frames of another length."""
    return stored.codec_digest is not None and not has_same_shape(stored.code_format, read_code_format(codec))


def _check_codec(folder: Path, stored: CodesSummary, codec: Codec) -> Iterator[Problem]:
    """Compare with the codec that `overtone codes` stored; rows do not contain it. Codes of another shape are one problem."""
    if stored.codec_digest in (None, codec.digest()):
        return
    difference = f"{stored.code_format}; --model has {read_code_format(codec)}; " if _is_of_other_shape(stored, codec) else ""
    yield Problem("other_codec", f"{STORE}/{SUMMARY}", f"{difference}run: {_codes_command(folder, codec.model)}")


def _note_assumed_codec(stored: CodesSummary, problems: list[Problem]) -> Iterator[Problem]:
    """Yield the note that codes without a record of their codec were checked as those of the default one: if they do not fit, that may be
    the reason."""
    wrong = next((problem for problem in problems if problem.kind == "codes"), None)
    if wrong is not None and stored.codec_digest is None:
        yield Problem("assumed_codec", wrong.place, f"assumed: {CODECS[0]}, {stored.code_format}; for another one, give its --model")


def _format_problems(problems: list[Problem], kinds: Mapping[str, tuple[str, str]], prefix: str) -> Iterator[str]:
    """Yield the count and the first locations of each kind of problem."""
    for kind, (noun, rest) in kinds.items():
        places = [problem for problem in problems if problem.kind == kind]
        if places:
            yield f"{prefix}{format_count(len(places), noun)} {rest}"
            yield from (f"    {place}: {_escape_unprintable(detail)}" for _, place, detail in places[:SHOWN])
        if len(places) > SHOWN:
            yield f"    … and {len(places) - SHOWN:,} more"


def _escape_unprintable(text: str) -> str:
    """Escape line breaks and terminal control characters: file names may contain any of them."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _format_totals(rows: list[RowFacts]) -> Iterator[str]:
    """Yield the number and duration of clips per split, speaker and language."""
    groups: dict[str, list[RowFacts]] = defaultdict(list)
    for row in rows:
        for name in (VAL if row.validates else TRAIN, f"speaker {row.speaker or '(not named)'}", f"language {row.language}"):
            groups[name].append(row)
    order = sorted(groups, key=lambda name: (name not in (TRAIN, VAL), name.startswith("language"), name))
    for name in order:
        clips = groups[name]
        time = format_clock(sum(row.sound.seconds for row in clips if row.sound))
        yield f"{_escape_unprintable(name):<24}{len(clips):>8,} clips{time:>14}"


def _codes_command(dataset: Path, model: object, *more: str) -> str:
    return overtone_command("codes", dataset, "--model", model, *more)


def _format_next_command(options: argparse.Namespace, checked: CheckResult) -> str:
    dataset, root, rows = options.dataset, options.root, checked.rows
    if root:
        command = overtone_command("export-dataset", dataset, "--root", root, "--as", "voice", "--to", "FOLDER")
        return f"next: {command}   (copies all clips into one folder)"
    if not rows[0].coded:
        speaker = [] if all(row.speaker for row in rows) else ["--speaker", "NAME"]
        return f"next: {_codes_command(dataset, options.model or DEFAULT_MODEL, *speaker)}"
    model = options.model or checked.summary.entries.get("model")
    base = find_base_model(model) if isinstance(model, str) else None
    return f"next: {manifest.training_command(dataset, checked.recipe, base)}"
