"""Recordings elsewhere, by fsspec URL: brought beside the dataset, each once, before anything is heard.

`data/me.recordings/NAME/` comes to hold what the URL does; NAME is its last part. What the rows name is relative to that folder, so another
machine makes the same bytes. A ledger beside it knows what each file was when it was brought.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from finetune import files, remote, strict_json
from finetune.errors import UserError


def brought(url: str, out: Path) -> Path:
    """The folder that holds the recordings of `url` now: what is new there, or has changed, is fetched, and what is gone there is removed.

    For one process at a time. Raises `UserError` if nothing is there, or it cannot be read.
    """
    there = {name: found for name, found in remote.find(url).items() if not any(part.startswith(".") for part in name.split("/"))}
    if not there:
        raise UserError(f"{url} holds no files; give the folder that holds your recordings")
    beside = files.make_folder(out.with_name(f"{out.name}.recordings"))
    folder, ledger = files.make_folder(beside / remote.name_of(url)), beside / f"{remote.name_of(url)}.jsonl"
    paths = {name: files.resolve_under(folder, name) for name in there}
    known = _known(ledger)
    for gone in sorted({path for path in folder.rglob("*") if path.is_file()} - set(paths.values())):
        files.discard(gone)
    missing = [name for name, found in there.items() if known.get(name) != found.identity or not paths[name].is_file()]
    for number, name in enumerate(missing, start=1):
        print(f"{number} of {len(missing)}: {url}/{name}, {there[name].bytes / 1e6:.1f} MB", flush=True)
        remote.bring(f"{url}/{name}", there[name], paths[name], beside)  # whole, and only then in the ledger
        files.append_line(ledger, json.dumps({"name": name, "identity": there[name].identity}))
    return folder


def _known(ledger: Path) -> dict[str, str]:
    """Name → identity when it was brought; the last entry counts, and a torn one does not."""
    known: dict[str, str] = {}
    for line in ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = strict_json.loads(line)
            known[entry["name"]] = entry["identity"]
    return known
