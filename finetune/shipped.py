"""The demo models that come with the package: chosen by name, expanded into a cache at their first use.

Each is one ZIP archive in `finetune/demo_models/`. They know a few hundred words and synthetic voices, and nothing ever falls back to
them: they are used when their name is given, and they say what they are.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path

from finetune import files
from finetune.errors import UserError

HERE = Path(__file__).resolve().parent / "demo_models"
CARD, FIGURES = "README.md", "figures.json"
"""In an archive, for people and for programs."""
BUILT_ON = "built_on.json"
"""In an archive: folder → demo model whose folder of that name this one has too. It ships once."""
WARNING = (
    "demo model {name}: a few hundred words, synthetic voices; it is good for nothing else. "
    "For your own voice use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base, and Whisper small or larger"
)


def names() -> list[str]:
    """What `folder_of` knows."""
    return sorted(path.stem for path in HERE.glob("*.zip"))


def is_shipped(name: str) -> bool:
    """Whether it is the name of a demo model."""
    return name in names()


def among() -> str:
    """For the end of an error: which demo models there are; nothing if this copy came without."""
    return f" nor a demo model ({', '.join(names())})" if names() else ""


def or_folder(given: str) -> Path:
    """The folder of a demo model, or `given` as a path: the type of an option that takes either."""
    return folder_of(given) if is_shipped(given) else Path(given)


def told(model: str) -> dict[str, str]:
    """What a run's summary says of a demo model; nothing of another."""
    return {"demo_model": WARNING.format(name=model)} if is_shipped(model) else {}


def folder_of(name: str) -> Path:
    """The folder of a demo model, `~/.cache/overtone/<name>-<digest>`; says on stderr what it is. Raises `UserError` for another name."""
    if not is_shipped(name):
        raise UserError(f"{name}: no demo model of that name; there are {', '.join(names()) or 'none'}")
    _warn(name)
    folder = cache() / f"{name}-{_digest(name)}"
    if not folder.is_dir():
        _expand(name, folder)
    return folder


@functools.cache
def _warn(name: str) -> None:
    """Once in a process."""
    print(f"warning: {WARNING.format(name=name)}", file=sys.stderr, flush=True)


def cache() -> Path:
    """Where demo models are expanded: `$XDG_CACHE_HOME/overtone`, by default `~/.cache/overtone`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overtone"


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
    """(demo model, prefix of what is taken from its archive)."""
    with _archive(name) as archive:
        told = json.loads(archive.read(BUILT_ON)) if BUILT_ON in archive.namelist() else {}
    return [(name, ""), *((other, f"{part}/") for part, other in told.items())]


def _digest(name: str) -> str:
    total = hashlib.sha256()
    for model, _ in _parts(name):
        total.update(_file(model).read_bytes())
    return total.hexdigest()[:16]


def _archive(name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(_file(name))


def _file(name: str) -> Path:
    """Raises `UserError` if this copy of the package came without it."""
    path = HERE / f"{name}.zip"
    if not path.is_file():
        raise UserError(f"{path} is missing; reinstall the package")
    return path


def pack(folder: Path) -> bytes:
    """The archive of a folder with a model and its card; the same files give the same bytes. Raises `UserError` without a card."""
    if not (folder / CARD).is_file():
        raise UserError(f"{folder} has no {CARD}; a demo model says what it is, so write its card first")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_LZMA) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(_entry(path.relative_to(folder).as_posix()), path.read_bytes())
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a time or an owner, which would differ each time."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_LZMA
    entry.external_attr = 0o644 << 16
    return entry
