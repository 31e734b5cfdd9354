"""The demo models that come with the package: chosen by name, expanded into a cache at their first use.

Each is one ZIP archive in `data_prep/models/`. They know a few hundred words and synthetic voices, and nothing ever falls back to them:
they are used when their name is given, and they say what they are.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path

from finetune import files
from finetune.errors import UserError

HERE = Path(__file__).resolve().parent / "models"
CARD = "README.md"
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


def told(model: str) -> dict[str, str]:
    """What a run's summary says of a demo model; nothing of another."""
    return {"demo_model": WARNING.format(name=model)} if is_shipped(model) else {}


def folder_of(name: str) -> Path:
    """The folder of a demo model, `~/.cache/overtone/<name>-<digest>`; says on stderr what it is. Raises `UserError` for another name."""
    if not is_shipped(name):
        raise UserError(f"{name}: no demo model of that name; there are {', '.join(names()) or 'none'}")
    print(f"warning: {WARNING.format(name=name)}", file=sys.stderr, flush=True)
    data = (HERE / f"{name}.zip").read_bytes()
    folder = cache() / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
    if not folder.is_dir():
        _expand(data, folder)
    return folder


def cache() -> Path:
    """Where demo models are expanded: `$XDG_CACHE_HOME/overtone`, by default `~/.cache/overtone`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overtone"


def _expand(data: bytes, folder: Path) -> None:
    temporary = files.fresh_folder(folder.parent, folder.name)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            path = files.resolve_under(temporary, name)
            files.make_folder(path.parent)
            files.write_in_place(path, archive.read(name))
    try:
        files.commit_folder(temporary, folder)
    except (UserError, OSError):
        files.discard(temporary)
        if not folder.is_dir():  # otherwise another process was faster, with the same content
            raise


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
