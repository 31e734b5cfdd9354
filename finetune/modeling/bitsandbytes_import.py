"""Imports bitsandbytes, the optional package of 8-bit optimizers and 4-bit weights, without the banner that it logs."""

from __future__ import annotations

import logging

from overtone.finetune.errors import UserError


def import_bitsandbytes(setting: str) -> None:
    """Import the package, which is then found under its own name. Raises `UserError`, in the name of `setting`, if it is not installed.

    It logs a warning if it has no binary for exactly this release of CUDA and loads another, which works; its errors are still logged.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import bitsandbytes  # noqa: F401 - only to check that it is installed
    except ImportError as error:
        raise UserError(f"{setting} needs bitsandbytes: pip install 'overtone[qlora]' ({error})") from None
