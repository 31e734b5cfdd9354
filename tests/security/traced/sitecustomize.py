"""Python imports this module at its start if its folder is on PYTHONPATH: from then on, each process notes what it changes on the disk.

The paths of changes below `TRACE_ROOT` are appended to the file `TRACE_TO`, one a line. `overtone.*` are events of `files` with the whole
path; Python's own events have only the last name of what is opened relative to a folder's handle. Code in C that opens files itself is not
seen: the tests compare the folder before and after.
"""
# ruff: noqa: PTH109, PTH115, PTH118

from __future__ import annotations

import os
import sys
from typing import Any

CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SUBJECTS = {
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.truncate": ((0, None),),
    "sqlite3.connect": ((0, None),),
}
"""Event → which of its arguments are paths that are changed, each with the argument that is the handle of its folder (-1: none)."""
OWN = ("overtone.write", "overtone.mkdir", "overtone.rename", "overtone.remove", "overtone.chmod")
RELATIVE = ("/finetune/storage/files.py", "/finetune/storage/folder_handles.py")
"""Files that open files relative to a handle, which the event does not contain."""


def begin_trace() -> None:
    """Note every change from now on. Without pathlib, whose operations would call the hook again."""
    root, here = os.environ["TRACE_ROOT"], os.getcwd()
    notes = os.open(os.environ["TRACE_TO"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(subject: Any, handle: int = -1) -> None:
        if isinstance(subject, str | bytes | os.PathLike):
            folder = here if handle == -1 else os.readlink(f"/proc/self/fd/{handle}")
            path = os.path.normpath(os.path.join(folder, os.fsdecode(subject)))
            if path.startswith(f"{root}/"):
                os.write(notes, os.fsencode(path[len(root) + 1 :].replace("\n", "?")) + b"\n")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal here
        if event in OWN:
            note(arguments[0])
        elif event == "os.chdir" and isinstance(arguments[0], str | os.PathLike):
            here = os.path.join(here, arguments[0])
        elif event == "open":
            changes = isinstance(arguments[2], int) and arguments[2] & CHANGING
            if changes and not sys._getframe(1).f_code.co_filename.endswith(RELATIVE):
                note(arguments[0])
        elif event in SUBJECTS:
            for number, handle in SUBJECTS[event]:
                note(arguments[number], -1 if handle is None else arguments[handle])

    sys.addaudithook(hook)


if "TRACE_TO" in os.environ:
    begin_trace()
