"""Atomic file operations: files and folders are written under a temporary name, synced, and renamed; also locks and disk-space checks.

All writes of this project go through this module, so a reader sees the old or the new content, never a mix. It does not import torch.
`watch` lets a test observe, or fail, each operation.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.folder_handles import open_file, open_folder, refuse_irregular, stat_without_following
from overtone.finetune.terminal import print_diagnostic

TEMPORARY = ".tmp-"
TRASH = ".trash-"
OWNER = ".owner"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without locks, such as some network file systems."""
WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Errors of file systems without hard links."""

_watcher: Callable[[str, Path], None] | None = None


@contextlib.contextmanager
def watch(callback: Callable[[str, Path], None]) -> Iterator[None]:
    """Call `callback(operation, path)` before each operation (`write`, `sync`, `rename`, `remove`, `mkdir`); it may raise."""
    global _watcher
    previous, _watcher = _watcher, callback
    try:
        yield
    finally:
        _watcher = previous


def _about_to(operation: str, path: Path) -> None:
    sys.audit(f"overtone.{operation}", os.fspath(path))  # with the whole path, which Python's own events lack for relative operations
    if _watcher is not None:
        _watcher(operation, path)


def make_folder(path: Path) -> Path:
    """Create a folder and its parents if it does not exist; returns it."""
    if not path.is_dir():
        _about_to("mkdir", path)
    with explain_full_disk(path, 0), open_folder(path, create=True):
        return path


def make_private(path: Path) -> Path:
    """Create a folder that only its owner may enter, or close one that exists to everybody else. Warns where that is not possible."""
    make_folder(path)
    with open_folder(path) as folder:
        if stat.S_IMODE(os.fstat(folder).st_mode) & 0o077:
            _about_to("chmod", path)
            try:
                os.chmod(".", 0o700, dir_fd=folder)
            except OSError as error:  # another owner's folder, or a disk without permissions
                print_diagnostic(f"warning: other users can read {path}, whose permissions cannot be changed ({error.strerror})")
    return path


def write_bytes(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Atomically replace the content of a file: write a temporary file beside it, sync, rename, sync the folder."""
    with _replace(path, len(data)) as file:
        file.write(data)


def write_if_absent(path: Path, data: bytes, mode: int = 0o666) -> bool:
    """As `write_bytes`, but does not replace an existing file; returns whether this call created it. Safe among processes.

    `mode`: permissions of the file, without those that the umask removes.
    """
    temporary = _name_temporary(path)
    with open_folder(path.parent, create=True) as folder:
        try:
            with explain_full_disk(path, len(data)), _create(temporary, folder, mode) as file:
                file.write(data)
                _sync(file, temporary)
            if not _link_if_absent(temporary, path, folder, folder):
                return False
        finally:
            _remove_file(temporary, folder)
    sync_folder(path.parent)
    return True


def append_block(path: Path, offset: int, block: bytes) -> int:
    """Append a block to a file that grows in pieces, and return its size; at offset 0 make it. Safe among processes.

    Raises `UserError` if the file exists at offset 0, or has another size than `offset`.
    """
    _about_to("write", path)
    flags = os.O_CREAT | os.O_EXCL if offset == 0 else 0
    try:
        descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | flags)
    except (FileExistsError, FileNotFoundError) as error:
        raise UserError(f"{path} {'exists already' if offset == 0 else 'is gone'}; begin again") from error
    with explain_full_disk(path, len(block)), os.fdopen(descriptor, "ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if (size := os.fstat(file.fileno()).st_size) != offset:
            raise UserError(f"{path} has {size} bytes, not {offset}; begin again")
        file.write(block)
    return offset + len(block)


def move_if_absent(source: Path, target: Path) -> bool:
    """Sync a file, and rename it to `target` in a folder of the same disk, if nothing has that name; returns whether it did. Safe among
    processes."""
    with open_folder(source.parent) as here, open_folder(target.parent, create=True) as there:
        with os.fdopen(open_file(source, os.O_RDONLY, here), "rb") as file:
            os.fsync(file.fileno())
        if not _link_if_absent(source, target, here, there):
            return False
        _remove_file(source, here)
    sync_folder(target.parent)
    return True


def move_over(source: Path, target: Path) -> None:
    """As `move_if_absent`, but replaces a file that has that name. Raises `UserError` if it is a link or a folder."""
    if (found := stat_without_following(target)) is not None:
        refuse_irregular(target, found.st_mode)
    with input_files.open_file(source) as file:
        os.fsync(file.fileno())
    make_folder(target.parent)
    _rename(source, target)
    sync_folder(target.parent)


def _link_if_absent(source: Path, target: Path, here: int, there: int) -> bool:
    """Give a file a second name, if nothing has it. `here` and `there`: handles of their folders."""
    _about_to("rename", target)
    try:
        os.link(source.name, target.name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        if stat_without_following(target) is not None:
            return False
        os.replace(source.name, target.name, src_dir_fd=here, dst_dir_fd=there)
    return True


def write_volatile(path: Path, data: bytes) -> None:
    """As `write_bytes` without a sync, for files that are written every few seconds and need not survive a crash of the machine."""
    with _replace(path, len(data), durable=False) as file:
        file.write(data)


def write_in_place(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write and sync a file of a folder that is still temporary (see `fresh_folder`). Not atomic by itself."""
    with explain_full_disk(path, len(data)), _open_to_write(path, os.O_WRONLY | os.O_TRUNC) as file:
        file.write(data)
        _sync(file, path)


@dataclass(frozen=True)
class Written:
    """Size and digest of a streamed file."""

    bytes: int
    digest: str
    """SHA-256, hex."""
    front_digest: str | None = None
    """SHA-256, hex, of the first `front` bytes, if they were requested."""


def write_blocks(path: Path, blocks: Iterable[bytes | memoryview], front: int | None = None) -> Written:
    """Stream blocks into a file of a temporary folder (see `fresh_folder`), and hash them. Not atomic by itself. `front`: bytes at the
    beginning that get a digest of their own; a block must end there."""
    with explain_full_disk(path, 0), _open_to_write(path, os.O_WRONLY | os.O_TRUNC) as file:
        written = _write_all(file, blocks, front)
        _sync(file, path)
    return written


def write_stream(path: Path, blocks: Iterable[bytes | memoryview]) -> Written:
    """As `write_bytes`, for a stream of blocks. If `blocks` raises, the old file stays."""
    with _replace(path) as file:
        return _write_all(file, blocks)


def _write_all(file: IO[bytes], blocks: Iterable[bytes | memoryview], front: int | None = None) -> Written:
    total, size, front_digest = hashlib.sha256(), 0, None
    for block in blocks:
        file.write(block)
        total.update(block)
        size += len(block)
        if size == front:
            front_digest = total.hexdigest()
    return Written(size, total.hexdigest(), front_digest)


def copy_into(source: Path, target: Path) -> None:
    """Copy a file into a temporary folder, streamed and synced."""
    make_folder(target.parent)
    with input_files.open_file(source) as file:
        write_blocks(target, iter(lambda: file.read(2**22), b""))


def link_into(source: Path, target: Path) -> None:
    """Hard-link a file into a temporary folder, or copy it if the file system has no hard links."""
    make_folder(target.parent)
    _about_to("write", target)
    try:
        with explain_full_disk(target, 0), open_folder(target.parent) as folder:
            os.link(source, target.name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        copy_into(source, target)


def link_symbolically(source: Path, target: Path) -> None:
    """Make `target`, in a temporary folder, a symbolic link to `source`."""
    _about_to("write", target)
    with open_folder(target.parent) as folder:
        os.symlink(source, target.name, dir_fd=folder)


def write_text(path: Path, text: str) -> None:
    """Atomically replace a UTF-8 text file."""
    write_bytes(path, text.encode("utf-8"))


def json_bytes(value: object) -> bytes:
    """Return a value as indented JSON. Raises `ValueError` for NaN and infinity, which other parsers reject."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: object) -> None:
    """Atomically replace a JSON file. Raises as `json_bytes`."""
    write_bytes(path, json_bytes(value))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Atomically replace a JSONL file from a stream of rows; returns the number of rows."""
    count = 0
    with _replace(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
            count += 1
    return count


def append_line(path: Path, line: str) -> None:
    """Append one line to a log. A crash may leave a partial last line, which readers must drop; it does not damage the next line."""
    make_folder(path.parent)
    data = f"{line}\n".encode()
    with explain_full_disk(path, len(data)), _open_to_write(path, os.O_RDWR | os.O_APPEND) as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
            data = b"\n" + data
        file.write(data)


def check_log(path: Path) -> None:
    """Raises `UserError` if `append_line` would refuse a file that is there already, such as a link. For checks before long work."""
    found = stat_without_following(path)
    if found is not None:
        refuse_irregular(path, found.st_mode)


def fresh_folder(parent: Path, name: str, mode: int = 0o777) -> Path:
    """Create an empty temporary folder inside `parent`, to be filled and then renamed by `commit_folder`."""
    make_folder(parent)
    path = parent / f".{name}{TEMPORARY}{secrets.token_hex(4)}"
    _about_to("mkdir", path)
    with explain_full_disk(path, 0), open_folder(parent) as folder:
        os.mkdir(path.name, mode, dir_fd=folder)
    return path


def commit_folder(temporary: Path, final: Path) -> None:
    """Rename a filled temporary folder to its final name: sync its content, rename, sync the parent.

    Raises `UserError` if `final` exists: a committed folder is never overwritten.
    """
    if stat_without_following(final) is not None:
        raise UserError(f"{final} already exists and would be overwritten; remove it or choose another name")
    for path in sorted(temporary.rglob("*")):
        if path.is_dir():
            sync_folder(path)
    sync_folder(temporary)
    _rename(temporary, final)
    sync_folder(final.parent)


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """While open, a private folder of this process among the system's temporary files; those of killed processes are removed first."""
    home, name = Path(tempfile.gettempdir()), f"{name}-{os.getuid()}"
    for left in list_unfinished(home, name):
        _remove_abandoned(left)
    path, lock = _make_locked_folder(home, name)
    try:
        yield path
    finally:
        try:
            discard(path)
        finally:
            os.close(lock)


def _make_locked_folder(home: Path, name: str) -> tuple[Path, int]:
    """A new private folder in `home`, and the descriptor that holds its lock, which ends with this process."""
    while True:
        path = fresh_folder(home, name, 0o700)
        try:
            descriptor = _open_to_lock(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in WITHOUT_LOCKS:  # nor can another process lock it, and so it removes none
                    return path, descriptor
                raise
        except (BlockingIOError, FileNotFoundError):  # another process that starts has found it before it was locked, and removes it
            continue
        if path.exists():
            return path, descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove a temporary folder whose process has ended. One of another user, one that is in use, and a link stay."""
    found = stat_without_following(path)
    if found is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    with contextlib.suppress(OSError):  # it is in use, or another process has removed it
        descriptor = _open_to_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(path)
        finally:
            os.close(descriptor)


def _open_to_lock(folder: Path) -> int:
    """Descriptor of a folder itself, which can be locked without a file in it."""
    with open_folder(folder) as handle:
        return os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=handle)


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """While open, an empty temporary folder to fill; at the end `commit_folder` renames it to `final`, or an exception discards it."""
    temporary = fresh_folder(final.parent, final.name)
    try:
        yield temporary
        commit_folder(temporary, final)
    except BaseException:
        discard(temporary)
        raise


def discard(path: Path) -> None:
    """Delete a file or folder if it exists: rename it first, so that an interrupted delete leaves nothing that looks complete."""
    found = stat_without_following(path)
    if found is None:
        return
    trash = path if TRASH in path.name or TEMPORARY in path.name else path.with_name(f".{path.name}{TRASH}{secrets.token_hex(4)}")
    if trash != path:
        _rename(path, trash)
    _about_to("remove", trash)
    with open_folder(trash.parent) as folder:
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(trash.name, dir_fd=folder)
        else:  # a link, too: what it leads to stays
            os.unlink(trash.name, dir_fd=folder)


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process until it ends; returns the file descriptor that holds the lock.

    Raises `UserError` naming the owner if another process has locked it, since two runs in one folder would overwrite each other's files,
    and for a folder that is not writable. On a file system without locks it prints a warning instead.
    """
    with explain_write_errors(folder):
        path = make_folder(folder) / OWNER
        _about_to("write", path)
        with explain_full_disk(path, 0):
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise UserError(f"{folder} is in use by a running process ({owner}); wait for it, stop it, or choose another folder") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            os.close(descriptor)
            raise
        print_diagnostic(
            f"warning: the file system of {folder} has no locks ({error}), so a second run in this folder would not be refused, and the "
            "two would remove each other's checkpoints; make sure that only one run uses it, or choose a folder on a local disk"
        )
    with explain_write_errors(folder):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()} since {time.strftime('%F %T')}\n".encode(), 0)
    return descriptor


@contextlib.contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Convert errors of writing to `folder` (read-only, no permission, not a folder) to a `UserError`."""
    try:
        yield
    except OSError as error:
        if folder.is_file():
            raise UserError(f"{folder} is a file, not a folder; choose another folder") from error
        at = f" at {error.filename}" if error.filename is not None and Path(os.fsdecode(error.filename)) != folder else ""
        raise UserError(
            f"{folder} cannot be written to ({error.strerror or error}{at}); choose another folder, or change its permissions"
        ) from error


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on this file among processes. Without effect if the file cannot be written or locked."""
    try:
        make_folder(path.parent)
        _about_to("write", path)
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished(parent: Path, name: str = "") -> list[Path]:
    """Remove temporary files that killed processes left in `parent`, or only those of `name`; returns them. The caller must own these."""
    left = list_unfinished(parent, name)
    for path in left:
        discard(path)
    return left


def list_unfinished(parent: Path, name: str = "") -> list[Path]:
    """Temporary files and trash in `parent` (of `name` only, if given), of writes that are running or were killed."""
    if name:
        return sorted(path for path in parent.glob(".*") if path.name.startswith((f".{name}{TEMPORARY}", f".{name}{TRASH}")))
    return sorted(path for path in parent.glob(".*") if TEMPORARY in path.name or TRASH in path.name)


def digest(path: Path, front: int | None = None) -> str:
    """SHA-256 of a file's content, or of its first `front` bytes, as hex. Raises `OSError`, also for a pipe, a device or a socket."""
    with input_files.open_file(path) as file:
        if front is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        total, left = hashlib.sha256(), front
        while block := file.read(min(left, 2**22)):
            total.update(block)
            left -= len(block)
        return total.hexdigest()


def resolve_under(root: Path, relative: str) -> Path:
    """Return the resolved path of `relative` inside `root`. Raises `UserError` if it is outside of `root`, or not a valid path."""
    try:
        path = (root / relative).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a zero byte or a lone surrogate in the name; a cycle of links
        raise UserError(f"{ascii(relative)[:80]} is not a valid path ({type(error).__name__}); correct it") from error
    if not path.is_relative_to(root.resolve()):
        raise UserError(f"{relative!r} leads outside of {root}; only files in that folder are read (move or copy the file there)")
    return path


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raises `UserError` if fewer than `needed` bytes are free on the disk of `folder`, which need not exist."""
    if not has_inodes(folder):
        raise UserError(f"{purpose} needs files at {folder}, and no inodes are free: delete some files there, or choose another disk")
    free = free_bytes(folder)
    if free < needed:
        raise UserError(f"{purpose} needs {needed:,} bytes at {folder}, and {free:,} are free; free some space or choose another disk")


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, which need not exist."""
    return shutil.disk_usage(_nearest_existing(folder)).free


def has_inodes(folder: Path) -> bool:
    """Return whether the disk of `folder`, which need not exist, can hold one more file; True for a file system that does not count
    files."""
    found = os.statvfs(_nearest_existing(folder))
    return found.f_files == 0 or found.f_favail > 0


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in [folder, *folder.absolute().parents] if path.exists())


@contextlib.contextmanager
def explain_full_disk(path: Path, needed: int) -> Iterator[None]:
    """Convert "no space" and "quota" errors to a `UserError` with the path and the bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if error.errno == errno.ENOSPC and not has_inodes(path.parent):
            raise UserError(
                f"the disk holds as many files as it can: no inode is free for {path}; delete some files there and run the command again"
            ) from error
        free = free_bytes(path.parent)
        wanted = f"{needed:,} bytes" if needed else "more room"
        raise UserError(f"the disk is full: {path} needs {wanted}, {free:,} are free; free some space and run the command again") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, which makes renames inside it durable."""
    _about_to("sync", folder)
    with open_folder(folder) as handle:
        descriptor = os.open(".", os.O_RDONLY, dir_fd=handle)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _replace(path: Path, needed: int = 0, durable: bool = True) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` when the block ends without an error. `needed`: its bytes, if known. `durable`: sync the file
    and its folder."""
    make_folder(path.parent)
    temporary = _name_temporary(path)
    with open_folder(path.parent) as folder:
        try:
            with explain_full_disk(path, needed), _create(temporary, folder) as file:
                yield file
                if durable:
                    _sync(file, temporary)
            _about_to("rename", path)
            os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove_file(temporary, folder)
            raise
    if durable:
        sync_folder(path.parent)


def _name_temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY}{secrets.token_hex(4)}")


def _create(path: Path, folder: int, mode: int = 0o666) -> IO[bytes]:
    """A new file in the folder of this handle."""
    _about_to("write", path)
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder, mode), "wb")


def _open_to_write(path: Path, flags: int) -> IO[bytes]:
    """A file that may exist."""
    _about_to("write", path)
    return os.fdopen(open_file(path, flags | os.O_CREAT), "wb" if flags & os.O_WRONLY else "ab+")


def _sync(file: IO[bytes], path: Path) -> None:
    file.flush()
    _about_to("sync", path)
    os.fsync(file.fileno())


def _remove_file(path: Path, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=folder)


def _rename(source: Path, target: Path) -> None:
    _about_to("rename", target)
    with open_folder(source.parent) as here, open_folder(target.parent) as there:
        os.replace(source.name, target.name, src_dir_fd=here, dst_dir_fd=there)
