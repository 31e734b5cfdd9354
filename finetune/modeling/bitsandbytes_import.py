"""Imports bitsandbytes, the optional package of 8-bit optimizers and 4-bit weights, where it is needed, and only there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from overtone.finetune.errors import UserError


def import_bitsandbytes(setting: str) -> None:
    """Import the package, which is then found under its own name. Raises `UserError`, in the name of `setting`, if it is not installed.

    It logs a warning if it has no binary for exactly this release of CUDA and loads another, which works; its errors are still logged. On
    CPUs with AVX512-BF16 it would download and execute a kernel of a hub repository if the package `kernels` were installed, and otherwise
    advises to install that.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with hide_package("kernels"):
            import bitsandbytes  # noqa: F401 - only to check that it is installed
    except ImportError as error:
        raise UserError(f"{setting} needs bitsandbytes: pip install 'overtone[qlora]' ({error})") from None


@contextmanager
def hide_package(name: str) -> Iterator[None]:
    """While open, the package seems not to be installed, unless it has been imported already."""
    if name in sys.modules:
        yield
        return
    missing: Any = None
    sys.modules[name] = missing
    try:
        yield
    finally:
        del sys.modules[name]
