"""Demo models: selected by name, and unpacked to a cache at first use.

Each one is a ZIP archive in the data package `overtone_demo`, which a clone of the repository contains and a wheel does not. They know a
few hundred words and synthetic voices. They are used only when selected by name, never as a fallback, and print a warning that says what
they are.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import json
import os
import zipfile
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.folder_handles import cache_home
from overtone.finetune.terminal import print_diagnostic

PACKAGE = "overtone_demo"
IN_CLONE = Path(__file__).resolve().parents[2] / "workshop" / PACKAGE / PACKAGE
"""Folder of the data package in a clone of the repository."""
NAMES = ("codec-demo", "qwen3-tts-demo-base", "whisper-demo-en")
"""The demo models of the data package, so that their names mean something without it."""
CARD, FIGURES = "README.md", "figures.json"
"""Files of an archive: the model card, and its measurements."""
BUILT_ON = "built_on.json"
"""File of an archive: folder → demo model that contains it. Folders that two models share are packaged once."""
WARNING = (
    "demo model {name}: knows only a few hundred words and synthetic voices. "
    "For your own voice use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base, and Whisper small or larger"
)


def find_data() -> Path | None:
    """Return the folder of the data package: models, sample recordings, and the recordings of the demo. That of this clone of the
    repository, or else that of the installed package `overtone_demo`; None if there is neither."""
    if IN_CLONE.is_dir():
        return IN_CLONE
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def data_folder() -> Path:
    """Return the folder that `find_data` finds. Raises `UserError`, which says where the data package is, if it is not installed."""
    folder = find_data()
    if folder is None:
        raise UserError(
            f"the demo models ({', '.join(NAMES)}) and the demo's recordings are not in this installation; they are the folder "
            f"workshop/{PACKAGE} of Overtone's repository: in a clone of it, run pip install ./workshop/{PACKAGE}"
        )
    return folder


def archive_of(name: str) -> Path:
    """Return the path of a demo model's archive. Raises `UserError` if it, or the data package, is not in this installation."""
    path = data_folder() / "models" / f"{name}.zip"
    if not path.is_file():
        raise UserError(f"{path} is missing; restore it, or reinstall {PACKAGE}")
    return path


def names() -> list[str]:
    """Return the names of all demo models, also where the data package is not installed."""
    folder = find_data()
    return [*NAMES] if folder is None else sorted(path.stem for path in (folder / "models").glob("*.zip"))


def is_demo_model(name: str) -> bool:
    """Return whether `name` is a demo model, installed or not."""
    return name in names()


def warning_entry(model: str) -> dict[str, str]:
    """Entry of a run's summary with the warning for a demo model; empty for other models."""
    return {"demo_model": WARNING.format(name=model)} if is_demo_model(model) else {}


def folder_of(name: str) -> Path:
    """Return the folder of a demo model, `~/.cache/overtone/<name>-<digest>`; prints a warning to stderr. Raises `UserError` for an unknown
    name, if the data package is not installed, and if the cache cannot be written to."""
    if not is_demo_model(name):
        raise UserError(f"{name}: not a demo model; available: {', '.join(names()) or 'none'}")
    folder = cache() / f"{name}-{_digest(name)}"
    _warn(name)
    if not folder.is_dir():
        try:
            with files.explain_write_errors(cache()):
                _expand(name, folder)
        except UserError as error:
            raise UserError(f"the demo model {name} is unpacked to {cache()}: {error}; XDG_CACHE_HOME sets another cache") from error
    return folder


@functools.cache
def _warn(name: str) -> None:
    """Print the warning, once per process, on one rank of each machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print_diagnostic(f"warning: {WARNING.format(name=name)}")


def belongs_to_archive(path: Path) -> bool:
    """Return whether a file is one of those that describe a demo model's archive, and no part of the model."""
    return path.name in (FIGURES, BUILT_ON) and path.parent.parent == cache()


def cache() -> Path:
    """Return the folder to which demo models are unpacked: `$XDG_CACHE_HOME/overtone`, by default `~/.cache/overtone`."""
    return cache_home() / "overtone"


def _expand(name: str, folder: Path) -> None:
    temporary = files.fresh_folder(folder.parent, folder.name)
    for model, part in _parts(name):
        with _archive(model) as archive:
            for entry in archive.namelist():
                if entry.startswith(part):
                    path = files.resolve_under(temporary, entry)
                    files.make_folder(path.parent)
                    files.write_in_place(path, archive.read(entry))
    try:
        files.commit_folder(temporary, folder)
    except (UserError, OSError):
        files.discard(temporary)
        if not folder.is_dir():  # otherwise another process was faster, with the same content
            raise


def _parts(name: str) -> list[tuple[str, str]]:
    """(demo model, prefix of the files to take from its archive), for a model and those whose folders it shares."""
    with _archive(name) as archive:
        shared = json.loads(archive.read(BUILT_ON)) if BUILT_ON in archive.namelist() else {}
    return [(name, ""), *((other, f"{part}/") for part, other in shared.items())]


def _digest(name: str) -> str:
    total = hashlib.sha256()
    for model, _ in _parts(name):
        total.update(archive_of(model).read_bytes())
    return total.hexdigest()[:16]


def _archive(name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(archive_of(name))


def pack(folder: Path) -> bytes:
    """Archive of a model's folder, as bytes; reproducible. Raises `UserError` if the folder has no model card."""
    if not (folder / CARD).is_file():
        raise UserError(f"{folder} has no {CARD}; a demo model needs a model card, so write it first")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_LZMA) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(_entry(path.relative_to(folder).as_posix()), path.read_bytes())
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """A ZIP entry without time and owner, so that archives are reproducible."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_LZMA
    entry.external_attr = 0o644 << 16
    return entry
