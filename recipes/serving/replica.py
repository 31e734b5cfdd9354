"""A server as one of several replicas behind the proxy of a cluster: the app of `serve`, without a socket of its own."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from overtone.finetune.recipe import ReplicaPlan
from overtone.finetune.storage import files

from .access_control import TOKEN, AccessPolicy, load_access_policy

if TYPE_CHECKING:
    from fastapi import FastAPI


def make_plan(
    args: argparse.Namespace,
    folders: Iterable[Path],
    environment: Mapping[str, str],
    open_app: Callable[[AccessPolicy], AbstractContextManager[FastAPI]],
) -> ReplicaPlan:
    """Return the plan of a replica. `args`: the options of `add_server_options`. `open_app`: loads the models and makes the app. Raises
    `UserError` if the address would admit other machines without a token."""
    policy = load_access_policy(args.host, args.token_file, args.trusted_proxy, environment)
    token_files = () if args.token_file is None else (args.token_file,)
    return ReplicaPlan(
        host=args.host,
        port=args.port,
        slots=getattr(args, "batch", 1),
        room=args.queue,
        drain_seconds=args.drain_seconds,
        files=(*folders, *token_files),
        secrets={name: value for name, value in environment.items() if name == TOKEN},
        open_app=partial(open_app, policy),
    )


@contextmanager
def open_replica_folder() -> Iterator[Path]:
    """Create a private folder for the temporary files of this replica, and remove it at the end. Also removes those of replicas that were
    killed on this machine: they may contain recordings that somebody uploaded."""
    place = Path(tempfile.gettempdir())
    for left in files.list_unfinished(place):
        owner = re.match(r"\.overtone-replica-([0-9]+)\.", left.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            with suppress(OSError):  # another replica that starts has removed it
                if not left.is_symlink() and left.lstat().st_uid == os.getuid():  # any user may create folders with that name in /tmp
                    files.discard(left)
    folder = files.fresh_folder(place, f"overtone-replica-{os.getpid()}", 0o700)
    try:
        yield folder
    finally:
        files.discard(folder)
