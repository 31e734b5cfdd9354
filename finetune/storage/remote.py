"""Remote files by fsspec URL (s3://bucket/name, file:///mnt/share): list, read, write, download and upload.

Object storage has no rename, so a folder cannot be created atomically: a marker file that is uploaded last and removed first shows that the
folder is complete. Errors of a file system become a `UserError` with the URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from finetune.errors import UserError
from finetune.storage import files

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

URL = re.compile(r"[a-z][a-z0-9+.-]*://.+")
WEB = re.compile(r"(?:https?|webdavs?)://.+?(?=::\w+://|$)")
"""Web addresses in a URL, which may be chained: `zip://a::https://host/b`."""
METADATA_SERVICES = frozenset({ipaddress.ip_address("fd00:ec2::254")})
"""Addresses of such services that are not link-local."""
CONTENT = ("ETag", "etag", "e_tag", "md5Hash", "checksum", "generation", "version_id", "blob_id")
"""Keys of a file's info that change with its content. If there is none, the modification times (`TIMES`) are used."""
TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
BLOCK_BYTES = 2**22
ORIGIN = ".from"
"""File beside a downloaded file that contains its URL."""
ARRIVING = "arriving"
"""Name of the temporary folder of a download."""
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {
        "config_kwargs": {"retries": {"max_attempts": 1}}
    },  # s3fs itself retries five times, which would take 20 s if the server is down
}


def is_url(place: object) -> TypeGuard[str]:
    return isinstance(place, str) and URL.fullmatch(place) is not None


def parse_place(text: str) -> Path | str:
    """A command-line argument as a path, or as a string if it is a URL."""
    return text.rstrip("/") if is_url(text) else Path(text)


def name_of(url: str) -> str:
    """The last part of a URL."""
    return url.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class RemoteFile:
    """Size and identity of a remote file, known without reading it."""

    bytes: int
    identity: str
    """Changes whenever the content changes, as far as the file system can tell."""


def find_file(url: str) -> RemoteFile:
    """Size and identity of one file. Raises `UserError` if it does not exist or is a folder."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "accessing it"):
        info = system.info(path)
    if info["type"] != "file":
        raise UserError(f"{url} is a folder; give a file in it")
    return _describe_file(url, info)


def list_files(url: str) -> dict[str, RemoteFile]:
    """All files under a folder, by their path in it, sorted; empty if it does not exist: object storage has no empty folders."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "listing it"):
        listed: dict[str, dict[str, Any]] = system.find(path, detail=True)
    root = path.rstrip("/") + "/"
    inside = {name.removeprefix(root): listed[name] for name in sorted(listed) if name.startswith(root)}
    return {name: _describe_file(f"{url}/{name}", info) for name, info in inside.items()}


def read(url: str) -> bytes:
    """The content of a small file."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "reading it"):
        content: bytes = system.cat_file(path)
    return content


def write(url: str, content: bytes) -> None:
    """Write or replace a small file atomically."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "writing it"):
        if url.startswith("file://"):  # fsspec would truncate the old file first; object stores replace it atomically
            files.write_bytes(Path(path), content)
        else:
            system.pipe_file(path, content)


def create(url: str, content: bytes) -> bool:
    """Write a small file that must not exist yet; returns whether it now exists with this content.

    On S3 this is one conditional request. Other file systems may check and write in two steps, so the file is read back; of two processes
    that write at the same moment, both may get True.
    """
    system, path = _open_file_system(url)
    with _explain_errors(url, "creating it"):
        try:
            system.pipe_file(path, content, mode="create")
        except Exception:  # each file system has its own exception for an existing file
            if not system.exists(path):
                raise
    return read(url) == content


def fetch(url: str, cache: Path) -> Path:
    """Download a file to the cache unless this version is there; returns its path. For one process at a time."""
    found = find_file(url)
    kept = cache / found.identity
    inside = Path(*url.partition("://")[2].split("/")[-2:])  # with the folder's name, which says more than a digest
    if not kept.is_dir():
        files.remove_unfinished(files.make_folder(cache), found.identity)
        temporary = files.fresh_folder(cache, found.identity)
        download(url, found, temporary / inside)
        files.write_text(temporary / ORIGIN, url)
        files.commit_folder(temporary, kept)
    return kept / inside


def fetch_missing(fetched: Path, named: Iterable[Path]) -> None:
    """Download the missing files to which a file from `fetch` refers by relative paths (`named`); does nothing for other files.

    Each is downloaded once per version of the referring file. Raises `UserError` if one does not exist. For one process at a time.
    """
    kept = fetched.absolute().parent.parent  # absolute: also for a bare file name
    if not (kept / ORIGIN).is_file():
        return
    above, root = (kept / ORIGIN).read_text(encoding="utf-8").rpartition("/")[0], fetched.parent.resolve()
    for path in named:
        if not path.exists():
            url = f"{above}/{path.relative_to(root).as_posix()}"
            download_atomically(url, find_file(url), path, kept)


def download_atomically(url: str, found: RemoteFile, path: Path, beside: Path) -> None:
    """Download a file to `path` atomically, through a temporary folder in `beside`."""
    files.remove_unfinished(beside, ARRIVING)
    temporary = files.fresh_folder(beside, ARRIVING)
    try:
        download(url, found, temporary / path.name)
        files.discard(path)
        files.link_into(temporary / path.name, path)
    finally:
        files.discard(temporary)


def download(url: str, found: RemoteFile, path: Path) -> None:
    """Stream a file into a temporary folder. Raises `UserError` if the download is incomplete, or the file is replaced meanwhile."""
    system, place = _open_file_system(url)
    files.require_space(path.parent, found.bytes, f"a copy of {url}")
    files.make_folder(path.parent)
    with _explain_errors(url, "reading it"), system.open(place, "rb") as source:
        written = files.write_blocks(path, iter(lambda: source.read(BLOCK_BYTES), b""))
    if written.bytes != found.bytes or find_file(url) != found:
        raise UserError(f"{url} was replaced while it was read (received {written.bytes:,} of {found.bytes:,} bytes); start again")


def upload(folder: Path, url: str, last: str) -> None:
    """Upload all files of a folder, the file `last` after all others. An existing remote folder is removed before, `last` first."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    remove(url, last)
    for name in [*(name for name in names if name != last), last]:
        send(folder / name, f"{url}/{name}")


def send(path: Path, url: str) -> None:
    """Upload one file. Raises `UserError` if it is incomplete."""
    system, place = _open_file_system(url)
    with _explain_errors(url, "writing it"):
        system.put_file(str(path), place)
    if (arrived := find_file(url).bytes) != (size := path.stat().st_size):
        raise UserError(f"{url}: {arrived:,} of {size:,} bytes arrived; try again")


def remove(url: str, first: str) -> None:
    """Remove a folder and its content, the file `first` before the rest, so that a partly removed folder never looks complete. The folder
    may be missing."""
    system, path = _open_file_system(url)
    names = list_files(url)
    with _explain_errors(url, "removing it"):
        if first in names:
            system.rm_file(f"{path}/{first}")
        if names:
            system.rm(path, recursive=True)


def remove_file(url: str) -> None:
    system, path = _open_file_system(url)
    with _explain_errors(url, "removing it"):
        system.rm_file(path)


def _describe_file(url: str, info: dict[str, Any]) -> RemoteFile:
    content = {key: str(info[key]) for key in CONTENT if info.get(key) is not None}
    times = {key: _format_time(info[key]) for key in TIMES if info.get(key) is not None}
    known = content or times or {"never seen before": secrets.token_hex(8)}
    return RemoteFile(info["size"], hashlib.sha256(json.dumps([url, info["size"], known], sort_keys=True).encode()).hexdigest()[:32])


def _format_time(value: Any) -> str:
    """A time as text; the same for a datetime in any time zone and for its ISO string, since a file system may return either."""
    with contextlib.suppress(TypeError, ValueError):
        value = datetime.fromisoformat(value)
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _open_file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system and the path in it. Raises `UserError` if the scheme is unknown, or its package is not installed."""
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0]
    _refuse_link_local(url)
    try:
        system, path = url_to_fs(url, use_listings_cache=False, **OWN_OPTIONS.get(scheme, {}))
    except ImportError as error:
        wanted = "pip install 'overtone[s3]'" if scheme in ("s3", "s3a") else "see the list of file systems in fsspec's documentation"
        raise UserError(f"{url}: the package for {scheme}:// is not installed ({error}); {wanted}") from None
    except Exception as error:  # ValueError for an unknown scheme; file systems raise their own types for wrong settings
        raise UserError(
            f"{url}: {scheme}:// cannot be opened ({error}); use s3://bucket/name for S3, file:///path for a mounted folder"
        ) from error
    return system, path


def _refuse_link_local(url: str) -> None:
    """Raises `UserError` for a web address on the local link, before a request is sent: at such addresses, clouds give credentials to
    whoever asks from the machine, and a config or a command may come from a stranger."""
    for host in map(_find_host, WEB.findall(url)):
        for address in _resolve_addresses(host):
            if address.is_link_local or address in METADATA_SERVICES:
                raise UserError(
                    f"{url}: {host} is a link-local address ({address}), where a cloud machine finds its credentials, and no data; it is "
                    "never read, so give another URL"
                )


def _find_host(address: str) -> str:
    """The host of an http address; empty for an invalid one."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _resolve_addresses(host: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The IP addresses of a host; none if it has none."""
    try:
        found = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in socket.getaddrinfo(host or ".", None)}
    except (OSError, ValueError):  # the request itself fails, too, and says so
        return set()
    return {getattr(address, "ipv4_mapped", None) or address for address in found}


@contextlib.contextmanager
def _explain_errors(url: str, doing: str) -> Iterator[None]:
    """Convert errors of a file system to a `UserError`. Each client has its own exception types; most are not an `OSError`."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{url}: {doing} failed, since there is no such object or bucket; check the name") from error
    except PermissionError as error:
        raise UserError(f"{url}: {doing} is not allowed ({error}); check your credentials and the permissions of the bucket") from error
    except Exception as error:
        raise UserError(
            f"{url}: {doing} failed ({type(error).__name__}: {error}); check the network, the credentials and the client's settings"
        ) from error
