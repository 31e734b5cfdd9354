"""Files elsewhere, by fsspec URL (s3://bucket/name, file:///mnt/share): looked at, brought to the local disk, sent from it.

Object storage renames nothing, so a folder there cannot appear at once: the file that is sent last, and removed first, says that it is
whole. Whatever a file system raises becomes a `UserError` with the URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from finetune import files
from finetune.errors import UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

URL = re.compile(r"[a-z][a-z0-9+.-]*://.+")
CONTENT = ("ETag", "etag", "e_tag", "md5Hash", "checksum", "generation", "version_id")
"""What file systems call that which is another whenever the content is; where one has none, the times of the last change stand in."""
TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
BLOCK_BYTES = 2**22
ORIGIN = ".from"
"""Beside what was fetched: its URL."""
ARRIVING = "arriving"
"""Name of the temporary folder of a download."""
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {"config_kwargs": {"retries": {"max_attempts": 1}}},  # s3fs tries five times itself: a server that is gone would take 20 s
}


def is_url(place: object) -> TypeGuard[str]:
    return isinstance(place, str) and URL.fullmatch(place) is not None


def place(text: str) -> Path | str:
    """What a command line names: a path, or, as text, a URL."""
    return text.rstrip("/") if is_url(text) else Path(text)


def name_of(url: str) -> str:
    """Its last part."""
    return url.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class Found:
    """What is known of a file elsewhere without reading it."""

    bytes: int
    identity: str
    """Another one whenever the content is, as far as the file system can tell."""


def look(url: str) -> Found:
    """At one file. Raises `UserError` if it is not there, or no file."""
    system, path = _reach(url)
    with _explained(url, "looking for it"):
        info = system.info(path)
    if info["type"] != "file":
        raise UserError(f"{url} is a folder; give a file in it")
    return _found(url, info)


def find(url: str) -> dict[str, Found]:
    """All files under a folder, by their name in it, sorted; none if there is no such folder: object storage knows no empty ones."""
    system, path = _reach(url)
    with _explained(url, "listing it"):
        listed: dict[str, dict[str, Any]] = system.find(path, detail=True)
    root = path.rstrip("/") + "/"
    inside = {name.removeprefix(root): listed[name] for name in sorted(listed) if name.startswith(root)}
    return {name: _found(f"{url}/{name}", info) for name, info in inside.items()}


def read(url: str) -> bytes:
    """A small file."""
    system, path = _reach(url)
    with _explained(url, "reading it"):
        content: bytes = system.cat_file(path)
    return content


def write(url: str, content: bytes) -> None:
    """A small file, in one step, whatever was there before."""
    system, path = _reach(url)
    with _explained(url, "writing it"):
        if url.startswith("file://"):  # where fsspec would empty the old one first; an object store has no such moment
            files.write_bytes(Path(path), content)
        else:
            system.pipe_file(path, content)


def create(url: str, content: bytes) -> bool:
    """Write a small file that must not be there yet; returns whether it is there now with this content.

    On S3 this is one conditional request. Other file systems may look first and write then, so what is there is read back; two that
    write at the same moment may both be told yes.
    """
    system, path = _reach(url)
    with _explained(url, "creating it"):
        try:
            system.pipe_file(path, content, mode="create")
        except Exception:  # "it is there" has as many types as there are file systems
            if not system.exists(path):
                raise
    return read(url) == content


def fetch(url: str, cache: Path) -> Path:
    """A file as it lies in the cache, brought there unless this very content was before. For one process at a time."""
    found = look(url)
    kept = cache / found.identity
    inside = Path(*url.partition("://")[2].split("/")[-2:])  # with the folder's name: it tells a person more than a digest
    if not kept.is_dir():
        files.sweep(files.make_folder(cache), found.identity)
        temporary = files.fresh_folder(cache, found.identity)
        download(url, found, temporary / inside)
        files.write_text(temporary / ORIGIN, url)
        files.commit_folder(temporary, kept)
    return kept / inside


def complete(fetched: Path, named: Iterable[Path]) -> None:
    """Bring what a file from `fetch` names beside itself, as far as it is not there yet; of other files nothing. For one process at a time.

    Each comes once for every version of the file that names it. Raises `UserError` for what is not there either.
    """
    kept = fetched.absolute().parent.parent  # of a path that is only a name, or right under the root, too
    if not (kept / ORIGIN).is_file():
        return
    above, root = (kept / ORIGIN).read_text(encoding="utf-8").rpartition("/")[0], fetched.parent.resolve()
    for path in named:
        if not path.exists():
            url = f"{above}/{path.relative_to(root).as_posix()}"
            bring(url, look(url), path, kept)


def bring(url: str, found: Found, path: Path, beside: Path) -> None:
    """A file to `path`, where it appears whole or not at all, by way of a temporary folder in `beside`."""
    files.sweep(beside, ARRIVING)
    temporary = files.fresh_folder(beside, ARRIVING)
    try:
        download(url, found, temporary / path.name)
        files.discard(path)
        files.link_into(temporary / path.name, path)
    finally:
        files.discard(temporary)


def download(url: str, found: Found, path: Path) -> None:
    """Stream a file into a temporary folder. Raises `UserError` if it breaks off, or is replaced meanwhile."""
    system, place = _reach(url)
    files.require_space(path.parent, found.bytes, f"a copy of {url}")
    files.make_folder(path.parent)
    with _explained(url, "reading it"), system.open(place, "rb") as source:
        written = files.write_blocks(path, iter(lambda: source.read(BLOCK_BYTES), b""))
    if written.bytes != found.bytes or look(url) != found:
        raise UserError(f"{url} was replaced while it was read ({written.bytes:,} of {found.bytes:,} bytes came); start again")


def upload(folder: Path, url: str, last: str) -> None:
    """Send all files of a folder, those of `last` after all others have arrived. What was there before is removed, `last` first."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    remove(url, last)
    for name in [*(name for name in names if name != last), last]:
        send(folder / name, f"{url}/{name}")


def send(path: Path, url: str) -> None:
    """One file. Raises `UserError` unless all of it arrived."""
    system, place = _reach(url)
    with _explained(url, "writing it"):
        system.put_file(str(path), place)
    if (arrived := look(url).bytes) != (size := path.stat().st_size):
        raise UserError(f"{url}: {arrived:,} of {size:,} bytes arrived; try again")


def remove(url: str, first: str) -> None:
    """A folder with all that is in it; `first` goes before the rest, so that a half never looks whole. One that is not there is fine."""
    system, path = _reach(url)
    names = find(url)
    with _explained(url, "removing it"):
        if first in names:
            system.rm_file(f"{path}/{first}")
        if names:
            system.rm(path, recursive=True)


def remove_file(url: str) -> None:
    system, path = _reach(url)
    with _explained(url, "removing it"):
        system.rm_file(path)


def _found(url: str, info: dict[str, Any]) -> Found:
    content = {key: str(info[key]) for key in CONTENT if info.get(key) is not None}
    times = {key: _moment(info[key]) for key in TIMES if info.get(key) is not None}
    known = content or times or {"never seen before": secrets.token_hex(8)}
    return Found(info["size"], hashlib.sha256(json.dumps([url, info["size"], known], sort_keys=True).encode()).hexdigest()[:32])


def _moment(value: Any) -> str:
    """A time as text, the same for a date, whatever its zone, and for its ISO form: one file system may tell now one, now the other."""
    with contextlib.suppress(TypeError, ValueError):
        value = datetime.fromisoformat(value)
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _reach(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system and the path in it. Raises `UserError` if there is none of that name, or what it takes is not installed."""
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0]
    try:
        system, path = url_to_fs(url, use_listings_cache=False, **OWN_OPTIONS.get(scheme, {}))
    except ImportError as error:
        wanted = "pip install 'overtone[s3]'" if scheme in ("s3", "s3a") else "see the list of file systems in fsspec's documentation"
        raise UserError(f"{url}: what {scheme}:// takes is not installed ({error}); {wanted}") from None
    except Exception as error:  # "unknown" is a ValueError, and each file system has its own for a wrong setting
        raise UserError(f"{url}: {scheme}:// cannot be opened ({error}); S3 is s3://bucket/name, a mounted folder file:///path") from error
    return system, path


@contextlib.contextmanager
def _explained(url: str, doing: str) -> Iterator[None]:
    """What a file system raises as a `UserError`. The types are those of dozens of clients; most are no `OSError`."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{url}: {doing} failed, since there is no such object or bucket; look at its name") from error
    except PermissionError as error:
        raise UserError(f"{url}: {doing} is not allowed ({error}); look at your credentials, and at what the bucket grants them") from error
    except Exception as error:
        raise UserError(
            f"{url}: {doing} failed ({type(error).__name__}: {error}); look at the network, the credentials and the settings of its client"
        ) from error
