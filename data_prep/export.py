"""A voice dataset as other programs read it.

  python -m data_prep export data/me --as ljspeech --to me_ljspeech
  python -m data_prep export official.jsonl --root /data/wavs --as voice --to data/me

ljspeech     wavs/ID.wav and metadata.csv: id|text|text, of several speakers id|speaker|text (as Piper reads it)
audiofolder  train/ and validation/ with metadata.jsonl, for datasets.load_dataset("audiofolder", …)
voice        as `data_prep voice` makes it: a dataset in one place, from clips that lay anywhere under --root
qwen         train.jsonl for the official Qwen3-TTS scripts: audio, text, ref_audio, language, and audio_codes if they are there

Takes what `data_prep voice` made, and files of the official script. The new folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from data_prep.account import clock
from data_prep.audio import MASTER_RATE
from data_prep.check import Checked, check
from data_prep.export_formats import FORMATS, Exported, Item
from data_prep.lines import DATASET, ROOT, lines_of, manifests_of
from data_prep.row_checks import Facts
from finetune import files
from finetune.errors import UserError, exit_code

UNFIT = {"not_json", "bad_row", "outside", "no_file", "unreadable", "empty", "nan", "silent", "truncated"}
"""Problems with which a row cannot be exported."""
UNFIT_FOR_TRAINING = {"ref_audio", "codes", "codes_missing"}
SHOWN = 3
BYTES_PER_SECOND = 2 * MASTER_RATE


def main(argv: list[str]) -> int:
    """The verb."""
    return exit_code(_export, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("dataset", type=Path, help=DATASET)
    options.add_argument("--as", dest="layout", choices=list(FORMATS), required=True, help="the layout, see above")
    options.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the new folder")
    options.add_argument("--speaker", metavar="NAME", help="only the clips of this one")
    options.add_argument("--root", type=Path, help=ROOT)
    return options


def _export(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.to.exists():
        raise UserError(f"--to {options.to} exists already; remove it, or choose another folder")
    manifests = manifests_of(options.dataset)
    checked = check(manifests, options.root)
    _require_fit(checked, options)
    if not checked.rows:
        raise UserError(f"{options.dataset} holds no rows; make some with: python -m data_prep voice RECORDINGS --out FOLDER")
    items = _items(manifests, checked.rows, options)
    files.require_space(options.to, round(BYTES_PER_SECOND * sum(item.seconds for item in items)), f"the export of {options.dataset}")
    exported = write(items, options.layout, options.to)
    print(told(exported, options.to))
    return 0


def _require_fit(checked: Checked, options: argparse.Namespace) -> None:
    unfit = UNFIT | (UNFIT_FOR_TRAINING if options.layout in ("qwen", "voice") else set())
    wrong = [problem for problem in checked.problems if problem.kind in unfit]
    if wrong:
        root = f" --root {options.root}" if options.root else ""
        raise UserError(
            f"{options.dataset} has {len(wrong)} problems, the first at {wrong[0].place}: {wrong[0].detail}; "
            f"see them all with: python -m data_prep check {options.dataset}{root}"
        )


def _items(manifests: list[Path], facts: list[Facts], options: argparse.Namespace) -> list[Item]:
    """The clips to be written; all rows are fit, and `facts` has theirs in the same order."""
    items: list[Item] = []
    lines = (line for manifest in manifests for line in lines_of(manifest))
    for line, known in zip(lines, facts, strict=True):
        assert line.row is not None and known.sound is not None, "the dataset was checked"
        if options.speaker and known.speaker != options.speaker:
            continue
        root = (options.root or line.manifest.parent).resolve()
        clip = files.resolve_under(root, line.row.audio)
        reference = files.resolve_under(root, line.row.ref_audio) if line.row.ref_audio else None
        name = _name(line.row.id or clip.relative_to(root).with_suffix("").as_posix())
        codes = None if line.row.audio_codes is None else np.array(line.row.audio_codes, np.uint16)  # lists would take ten times the memory
        row = line.row.model_copy(update={"audio_codes": None})
        items.append(Item(name, line.place, row, codes, clip, reference, known.validates, known.sound.seconds))
    if not items:
        names = sorted({known.speaker for known in facts if known.speaker})
        raise UserError(f"{options.dataset}: no clip of speaker {options.speaker!r}; there are: {', '.join(names) or 'none with a name'}")
    _require_own_names(items)
    return items


def _name(identity: str) -> str:
    """Fit for a file, and for a field of metadata.csv."""
    return re.sub(r"[^\w.-]+", "_", identity).lstrip("._") or "_"


def _require_own_names(items: list[Item]) -> None:
    first: dict[str, Item] = {}
    for item in items:
        if (other := first.setdefault(item.name, item)) is not item:
            raise UserError(
                f"{item.place}: the clip would be called {item.name!r}, as the one of {other.place}; give both an id of their own"
            )


def write(items: list[Item], layout: str, to: Path) -> Exported:
    """Fill a temporary folder beside the target and give it its name by one rename."""
    files.make_folder(to.parent)
    files.sweep(to.parent, to.name)
    temporary = files.fresh_folder(to.parent, to.name)
    try:
        exported = FORMATS[layout](items, temporary)
        if not exported.items:
            raise UserError(f"nothing to export; {exported.left_out[0]}")
        files.commit_folder(temporary, to)
    except BaseException:
        files.discard(temporary)
        raise
    return exported


def told(exported: Exported, to: Path) -> str:
    """For people."""
    lines = [f"{to}: {len(exported.items):,} clips, {clock(sum(item.seconds for item in exported.items))}"]
    if exported.left_out:
        lines += [f"{len(exported.left_out)} left out:", *(f"    {one}" for one in exported.left_out[:SHOWN])]
    if len(exported.left_out) > SHOWN:
        lines.append(f"    … and {len(exported.left_out) - SHOWN} more")
    return "\n".join([*lines, exported.how_to.format(folder=to)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
