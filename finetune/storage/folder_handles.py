"""Opens folders and files to write without following links, unless the user named them: a downloaded folder may contain links to anywhere.

The rule: a path that the user wrote on the command line or in a config may lead through links, as may the folders for temporary files and
caches. Any other link on the way to what is written, changed or deleted is refused with its name. Every step is taken relative to the
handle of the folder before it, so a link that appears in between is not followed either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_diagnostic

VARIABLE = "OVERTONE_NAMED_LINKS"
"""Environment variable with the named paths that lead through links, so that child processes know them, too."""
NEW, REPORTED = "-+"
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""A handle that needs no permission to read the folder."""


def name_paths(words: Iterable[str]) -> None:
    """Accept links in paths that the user wrote: the words of a command line (`PATH`, `--flag PATH`, `--flag=PATH`), or paths of a config.

    A word that is not a path through a link has no effect. The folder beside a named path, such as `OUT.recordings` beside `--out OUT`, is
    reached through the same links.
    """
    known = _read_named()
    for word in words:
        path = Path((word.partition("=")[2] if word.startswith("--") else word).removeprefix("file://"))
        if _find_link(path) is not None:
            known.setdefault(str(path.absolute()), False)
    _keep_named(known)


def list_named_paths() -> list[str]:
    """Return the paths with links that `name_paths` has accepted, for a process that does not inherit this one's environment."""
    return [*_read_named()]


def cache_home() -> Path:
    """Return the user's folder for caches of all programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home fails for a user without one


@contextlib.contextmanager
def open_folder(path: Path, create: bool = False) -> Iterator[int]:
    """A handle of a folder, for the `dir_fd` parameters of `os`. `create`: make it and its parents if they do not exist.

    Raises `UserError` for a link that the user did not name, and `OSError` as `os.open`.
    """
    whole = path.absolute()
    accepted = _count_accepted(whole)
    start = Path(*whole.parts[:accepted])
    if create:
        start.mkdir(parents=True, exist_ok=True)
    handle = os.open(start, FOLDER)
    try:
        for end in range(accepted + 1, len(whole.parts) + 1):
            inner = _enter(handle, Path(*whole.parts[:end]), path, create)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def open_file(path: Path, flags: int, folder: int | None = None, mode: int = 0o666) -> int:
    """Descriptor of a regular file. `folder`: handle of its folder, if that is open already. `mode`: permissions of a new file.

    Raises `UserError` if the path is a link, a FIFO, a device, a socket or a folder, and `OSError` as `os.open`.
    """
    if folder is None:
        with open_folder(path.parent) as folder:
            return open_file(path, flags, folder, mode)
    try:
        # Without O_NONBLOCK, the opening of a FIFO would wait for a reader.
        descriptor = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # ENXIO: a FIFO without a reader, or a socket
            refuse_irregular(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        raise _with_path(error, path) from error
    try:
        refuse_irregular(path, os.fstat(descriptor).st_mode)
    except UserError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(path: Path, mode: int) -> None:
    """Raises `UserError` for a path that is not a regular file. `mode`: of its status, links not followed."""
    if stat.S_ISLNK(mode):
        raise _linked(path)
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file (a FIFO, a socket or a device)"
        raise UserError(f"{path} is {kind}, where a file must be written; remove it, or choose another folder")


def stat_without_following(path: Path) -> os.stat_result | None:
    """Status of a file, folder or link; None if it does not exist. Raises `UserError` for a link in its parents."""
    try:
        with open_folder(path.parent) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _enter(outer: int, place: Path, path: Path, create: bool) -> int:
    """Handle of the folder `place`, inside the folder of the handle `outer`. `path`: as the caller wrote it."""
    try:
        try:
            return os.open(place.name, FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(place.name, dir_fd=outer)
        return os.open(place.name, FOLDER | os.O_NOFOLLOW, dir_fd=outer)
    except OSError as error:
        shown = place if path.is_absolute() else Path(os.path.relpath(place))
        could_be_link = error.errno in (errno.ENOTDIR, errno.ELOOP)
        if could_be_link and stat.S_ISLNK(os.stat(place.name, dir_fd=outer, follow_symlinks=False).st_mode):
            raise _linked(shown, dir_fd=outer) from None
        raise _with_path(error, place) from error


def _linked(link: Path, dir_fd: int | None = None) -> UserError:
    target = os.readlink(link if dir_fd is None else link.name, dir_fd=dir_fd)
    return UserError(
        f"{link} is a link to {target}, and nothing is written, changed or deleted through a link that you did not name: it may have come "
        "with a download; remove the link, or give the place that it leads to on the command line or in the config"
    )


def _with_path(error: OSError, path: Path) -> OSError:
    """The error with the whole path: an operation relative to a handle knows only the last name."""
    return OSError(error.errno, error.strerror, str(path))


def _count_accepted(path: Path) -> int:
    """Return how many parts of an absolute path may be links: those it shares with a path that the user named, or with a folder of the
    system.

    The first use of a link that only the user named is reported on stderr.
    """
    # `tempfile.gettempdir` would fail on a full disk.
    temporary = Path(tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only the place of folders with random names
    system = max(_count_shared(path, folder) for folder in (Path.cwd(), temporary, cache_home()))
    named, known = 0, _read_named()
    for other, reported in known.items():
        shared = _count_shared(path, Path(other))
        link = _find_link(Path(*path.parts[:shared])) if shared > system else None
        if link is not None and not reported:
            if os.environ.get("RANK", "0") == "0":
                print_diagnostic(f"{link} is a link to {link.readlink()}; it is followed, because you named it")
            _keep_named(known | {other: True})
        named = max(named, shared)
    return max(system, named)


def _count_shared(one: Path, other: Path) -> int:
    return len(Path(os.path.commonpath([one, other.absolute()])).parts)


def _find_link(path: Path) -> Path | None:
    """The first part of a path that is a link; None if there is none, or the path is not valid."""
    try:
        return next((part for part in [*reversed(path.absolute().parents), path.absolute()] if part.is_symlink()), None)
    except OSError:  # a text and no path: too long
        return None


def _read_named() -> dict[str, bool]:
    """The named paths that lead through links, and whether that was reported."""
    words = os.environ.get(VARIABLE, "").split()
    return {os.fsdecode(bytes.fromhex(word[1:])): word[0] == REPORTED for word in words}


def _keep_named(known: dict[str, bool]) -> None:
    if known:  # as hexadecimal digits: a file name may contain any byte
        os.environ[VARIABLE] = " ".join((REPORTED if known[path] else NEW) + os.fsencode(path).hex() for path in known)
