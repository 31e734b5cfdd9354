"""Remote files by fsspec URL (s3://bucket/name, file:///mnt/share): list, read, write, download and upload.

Object storage has no rename, so a folder cannot be created atomically: a marker file that is uploaded last and removed first shows that the
folder is complete. Errors of a file system become a `UserError` with the URL.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from overtone.finetune.addresses import CHAIN, RemoteAddress, is_url
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

WEB = re.compile(r"(?:https?|webdavs?)://.+?(?=::\w+://|$)", re.IGNORECASE)
"""Web addresses in a URL, which may be chained: `zip://a::https://host/b`."""
METADATA_SERVICES = frozenset({ipaddress.ip_address("fd00:ec2::254")})
"""Addresses of such services that are not link-local."""
CONTENT = ("ETag", "etag", "e_tag", "md5Hash", "Content-MD5", "Digest", "checksum", "generation", "version_id", "blob_id")
"""Keys of a file's info that change with its content. If there is none, the modification times (`TIMES`) are used."""
TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")
BLOCK_BYTES = 2**22
ORIGIN = ".from"
"""File beside a downloaded file that contains its address, without secrets."""
ARRIVING = "arriving"
"""Name of the temporary folder of a download."""
CREDENTIALS = "check your credentials, whether a signature in the address has expired, and the permissions of the bucket"
WEB_SCHEMES = ("http", "https")
SILENCE_SECONDS = 60.0
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {
        "config_kwargs": {"retries": {"max_attempts": 1}}
    },  # s3fs itself retries five times, which would take 20 s if the server is down
}
_origins: dict[Path, RemoteAddress] = {}
"""Folder in the cache → the address of its file with the secrets, of what this process has downloaded."""


def parse_place(text: str) -> Path | RemoteAddress:
    """Return a command-line argument as a path, or as an address if it is a URL."""
    return RemoteAddress(text.rstrip("/")) if is_url(text) else Path(text)


@dataclass(frozen=True)
class RemoteFile:
    """Size and identity of a remote file, known without reading it."""

    bytes: int | None
    """None: a web server that does not say."""
    identity: str | None
    """Changes whenever the content changes, as far as the file system can tell; None if it does not say. It depends on no secret of the
    address: two presigned addresses of a file give the same."""


def find_file(url: str) -> RemoteFile:
    """Return size and identity of one file. Raises `UserError` if it does not exist or is a folder."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "accessing it"):
        info = system.info(path)
    if info["type"] != "file":
        raise UserError(f"{RemoteAddress(url)} is a folder; give a file in it")
    return _describe_file(RemoteAddress(url), info)


def list_files(url: str) -> dict[str, RemoteFile]:
    """Return all files under a folder, by their path in it, sorted; empty if it does not exist: object storage has no empty folders."""
    system, path = _open_file_system(url)
    with _explain_errors(url, "listing it"):
        listed: dict[str, dict[str, Any]] = system.find(path, detail=True)
    root = path.rstrip("/") + "/"
    inside = {name.removeprefix(root): listed[name] for name in sorted(listed) if name.startswith(root)}
    # The pages of web servers that list files say nothing else about them.
    there = {name: (RemoteAddress(url).child(name), info) for name, info in inside.items()}
    return {name: find_file(each) if info.get("size") is None else _describe_file(each, info) for name, (each, info) in there.items()}


def read(url: str) -> bytes:
    """Return the content of a small file."""
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
    """Download a file to the cache unless this version is there; returns its path. Only one process at a time may call it.

    Without a version, it is downloaded again, and kept by its content.
    """
    address = RemoteAddress(url)
    found = find_file(address)
    inside = f"{address.parent.name or 'root'}/{address.name}"  # with the folder's name, which says more than a digest
    if found.identity is None or not (cache / found.identity).is_dir():
        name = found.identity or ARRIVING
        files.remove_unfinished(files.make_folder(cache), name)
        temporary = files.fresh_folder(cache, name)
        arrived = files.resolve_under(temporary, inside)
        download(address, found, arrived)
        identity = found.identity or _make_identity(address, files.digest(arrived))
        files.write_text(temporary / ORIGIN, address)
        if (cache / identity).is_dir():
            files.discard(temporary)
        else:
            files.commit_folder(temporary, cache / identity)
    else:
        identity = found.identity
    _origins[(cache / identity).absolute()] = address
    return cache / identity / inside


def fetch_missing(fetched: Path, named: Iterable[Path]) -> None:
    """Download the missing files to which a file from `fetch` refers by relative paths (`named`); does nothing for other files.

    Each is downloaded once per version of the referring file. Raises `UserError` if one does not exist. Only one process at a time may call
    it.
    """
    kept = fetched.absolute().parent.parent  # absolute: also for a bare file name
    if not (kept / ORIGIN).is_file():
        return
    above, root = (_origins.get(kept) or RemoteAddress(input_files.read_text(kept / ORIGIN))).parent, fetched.parent.resolve()
    for path in named:
        if not path.exists():
            address = above.child(path.relative_to(root).as_posix())
            download_atomically(address, find_file(address), path, kept)


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
    files.require_space(path.parent, found.bytes or 0, f"a copy of {RemoteAddress(url)}")
    files.make_folder(path.parent)
    with _explain_errors(url, "reading it"), system.open(place, "rb") as source:
        written = files.write_blocks(path, iter(lambda: source.read(BLOCK_BYTES), b""))
    if written.bytes != (written.bytes if found.bytes is None else found.bytes):
        raise UserError(
            f"{RemoteAddress(url)}: received {written.bytes:,} of {found.bytes:,} bytes: it was replaced while it was read, or the "
            "connection ended early; start again"
        )
    if find_file(url) != found:
        raise UserError(f"{RemoteAddress(url)} was replaced while it was read; start again")


def upload(folder: Path, url: str, last: str) -> None:
    """Upload all files of a folder, the file `last` after all others. An existing remote folder is removed before, `last` first."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    remove(url, last)
    for name in [*(name for name in names if name != last), last]:
        send(folder / name, RemoteAddress(url).child(name))


def send(path: Path, url: str) -> None:
    """Upload one file. Raises `UserError` if it is incomplete."""
    system, place = _open_file_system(url)
    with _explain_errors(url, "writing it"):
        system.put_file(str(path), place)
    if (arrived := find_file(url).bytes) != (size := path.stat().st_size):
        raise UserError(f"{RemoteAddress(url)}: {arrived:,} of {size:,} bytes arrived; try again")


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


def _describe_file(address: RemoteAddress, info: Mapping[str, Any]) -> RemoteFile:
    content = {key: str(info[key]) for key in CONTENT if info.get(key) is not None}
    times = {key: _format_time(info[key]) for key in TIMES if info.get(key) is not None}
    if address != address.with_secrets:
        times = {}  # the query may choose one of several files with the same time
    weak = all(value.startswith("W/") for value in content.values())  # equal for contents that serve the same purpose
    known = {**content, **times} if weak else content
    return RemoteFile(info.get("size"), _make_identity(address, [info.get("size"), known]) if known else None)


def _make_identity(address: RemoteAddress, facts: object) -> str:
    return hashlib.sha256(json.dumps([address, facts], sort_keys=True).encode()).hexdigest()[:32]


def _format_time(value: object) -> str:
    """A time as text; the same for a datetime in any time zone and for its ISO string, since a file system may return either."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value)
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _open_file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system and the path in it. Raises `UserError` if the scheme is unknown, or its package is not installed."""
    from fsspec.core import url_to_fs

    address = RemoteAddress(url)
    if address.lacks_secrets:
        raise UserError(f"{address}: the user, password or query at *** is not saved; give the whole address again")
    refuse_link_local(address)
    scheme, *others = [link.partition("://")[0] for link in CHAIN.split(address.with_secrets)]
    try:
        # A file inside an archive needs parts of the archive; any other is read in one request, since not every server can send a part.
        own = {**_make_web_options(), "block_size": 0} if scheme in WEB_SCHEMES else OWN_OPTIONS.get(scheme, {})
        further = {other: _make_web_options() for other in others if other in WEB_SCHEMES}
        system, path = url_to_fs(address.with_secrets, use_listings_cache=False, **own, **further)
    except ImportError as error:
        wanted = "pip install 'overtone[s3]'" if scheme in ("s3", "s3a") else "see the list of file systems in fsspec's documentation"
        raise UserError(f"{address}: the package for {scheme}:// is not installed ({error}); {wanted}") from None
    except Exception as error:  # ValueError for an unknown scheme; file systems raise their own types for wrong settings
        raise UserError(
            f"{address}: {scheme}:// cannot be opened ({address.hide_in(error)}); use s3://bucket/name for S3, file:///path for a mounted "
            "folder"
        ) from None
    return system, path


@functools.cache
def _make_web_options() -> dict[str, Any]:
    """Options of fsspec's web client: no compression, so that sizes are those of the files; a time limit for a silent server, not for the
    whole request; no redirect to the local link."""
    from fsspec.implementations.http import aiohttp  # which is installed with the file system or not at all

    async def check_redirect(_session: object, _context: object, step: Any) -> None:
        location = step.response.headers.get("Location", "")
        refuse_link_local(RemoteAddress(urljoin(str(step.url), location)))

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check_redirect)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
    return {"headers": {"Accept-Encoding": "identity"}, "client_kwargs": {"trace_configs": [trace], "timeout": limits}}


def refuse_link_local(address: RemoteAddress) -> None:
    """Raises `UserError` for a web address on the local link, before a request is sent: at such addresses, clouds give credentials to
    whoever asks from the machine, and a config or a command may come from a stranger."""
    for host in map(_find_host, WEB.findall(address.with_secrets)):
        for found in _resolve_addresses(host):
            if found.is_link_local or found in METADATA_SERVICES:
                raise UserError(
                    f"{address}: {host} is a link-local address ({found}), where a cloud machine finds its credentials, and no data; it is "
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
    """Convert errors of a file system to a `UserError` without the secrets of the address. Each client has its own exception types; most
    are not an `OSError`."""
    address = RemoteAddress(url)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, UserError):  # a redirect that was refused
            raise cause from None
        status = getattr(cause, "status", None)  # fsspec says of each error of a web server that there is no file
        if status in (401, 403):
            raise UserError(f"{address}: {doing} is not allowed (status {status}); {CREDENTIALS}") from None
        if cause is not None and status not in (404, 410) and address.startswith(("http://", "https://")):
            raise UserError(f"{address}: {doing} failed ({address.hide_in(cause)}); check the network and the server") from None
        raise UserError(f"{address}: {doing} failed, since there is no such object or bucket; check the name") from None
    except PermissionError as error:
        raise UserError(f"{address}: {doing} is not allowed ({address.hide_in(error)}); {CREDENTIALS}") from None
    except Exception as error:
        raise UserError(
            f"{address}: {doing} failed ({type(error).__name__}: {address.hide_in(error)}); check the network, the credentials and the "
            "client's settings"
        ) from None
