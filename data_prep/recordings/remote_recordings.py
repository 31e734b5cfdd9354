"""Download remote recordings (the fsspec URL of a folder or of one file) to a folder next to the dataset, each once.

`data/me.recordings/NAME/` mirrors the URL; NAME is its last part. Rows hold paths relative to that folder, so another machine writes the
same bytes. A ledger next to it records the identity of each downloaded file.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path, PurePosixPath

from overtone.data_prep.recordings.recording_files import SOUND_ENDINGS
from overtone.data_prep.recordings.user_transcripts import SUFFIXES
from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, remote, strict_json
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_line


def download_recordings(url: RemoteAddress, out: Path) -> Path:
    """Mirror `url` and return the local folder: new and changed files are downloaded, deleted ones are removed. For the URL of one file,
    return its path; transcripts named after it are downloaded too.

    Only one process at a time may call it. Raises `UserError` if the URL has no files or cannot be read.
    """
    if PurePosixPath(url.name).suffix.lower() in SOUND_ENDINGS:
        return _download_one(url, out)
    there = {name: found for name, found in remote.list_files(url).items() if not any(part.startswith(".") for part in name.split("/"))}
    if not there:
        raise UserError(f"{url} has no files; give the folder with your recordings")
    beside = files.make_folder(out.with_name(f"{out.name}.recordings"))
    folder, ledger = files.make_folder(beside / url.name), beside / f"{url.name}.jsonl"
    _mirror(url, there, folder, ledger)
    return folder


def _download_one(url: RemoteAddress, out: Path) -> Path:
    """Download one recording, and the transcripts beside it that have its name."""
    above, name = url.parent, url.name
    stem = PurePosixPath(name).stem
    wanted: list[str] = []
    with contextlib.suppress(UserError):  # web servers list no folders
        beside = (each for each in remote.list_files(above) if each != name and each.startswith(f"{stem}."))
        wanted = [each for each in beside if "/" not in each and each.lower().endswith(SUFFIXES)]
    there = {each: remote.find_file(above.child(each)) for each in [name, *wanted]}
    folder = files.make_folder(out.with_name(f"{out.name}.recordings"))
    _mirror(above, there, files.make_folder(folder / stem), folder / f"{stem}.jsonl")
    return folder / stem / name


def _mirror(url: RemoteAddress, there: dict[str, remote.RemoteFile], folder: Path, ledger: Path) -> None:
    """Make `folder` hold exactly the files `there` of `url`."""
    beside = ledger.parent
    paths = {name: files.resolve_under(folder, name) for name in there}
    known = _read_ledger(ledger)
    for gone in sorted({path for path in folder.rglob("*") if path.is_file()} - set(paths.values())):
        files.discard(gone)
    missing = [
        name for name, found in there.items() if found.identity is None or known.get(name) != found.identity or not paths[name].is_file()
    ]
    for number, name in enumerate(missing, start=1):
        bytes_there = there[name].bytes
        size = "" if bytes_there is None else f", {bytes_there / 1e6:.1f} MB"
        print_line(f"{number} of {len(missing)}: {url.child(name)}{size}")
        remote.download_atomically(url.child(name), there[name], paths[name], beside)  # complete before it is recorded in the ledger
        files.append_line(ledger, json.dumps({"name": name, "identity": there[name].identity}))


def _read_ledger(ledger: Path) -> dict[str, str]:
    """Return name → identity at download. The last entry of a name counts; incomplete lines are ignored."""
    known: dict[str, str] = {}
    for line in read_lines(ledger) if ledger.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = strict_json.loads(line)
            known[entry["name"]] = entry["identity"]
    return known
